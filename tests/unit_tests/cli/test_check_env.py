"""`rlinf check-env` finds the env that is meant and reports what is wrong with it."""

from __future__ import annotations

import json
import sys
import types

import gymnasium
import numpy as np
import pytest

from rlinf.cli import main
from rlinf.cli.check_env import resolve


class Drifting(gymnasium.Env):
    """Draws its initial state from nowhere."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        return np.random.normal(size=2), {}

    def step(self, action: np.ndarray) -> tuple:
        return np.random.normal(size=2), 0.0, False, False, {}


@pytest.fixture
def drifting(monkeypatch: pytest.MonkeyPatch) -> str:
    """Registers a broken env in an extension module."""
    from rlinf.config import plugins
    from rlinf.envs import register_env, registry

    # What registers itself when it is imported does so only once: not into a copy.
    for kind in plugins.KINDS:
        for name in plugins.known_names(kind):
            plugins.get_schema(kind, name)
    monkeypatch.setattr(registry, "_targets", dict(registry._targets))
    monkeypatch.setattr(registry, "_own_keys", dict(registry._own_keys))
    members = dict(registry.SupportedEnvType._members)
    monkeypatch.setattr(registry.SupportedEnvType, "_members", members)
    schemas = {kind: dict(names) for kind, names in plugins._schemas.items()}
    monkeypatch.setattr(plugins, "_schemas", schemas)
    monkeypatch.setattr(plugins, "_extensions", set())
    module = types.ModuleType("drifting_envs")
    module.register = lambda: register_env("drifting", Drifting)
    monkeypatch.setitem(sys.modules, "drifting_envs", module)
    monkeypatch.setenv("RLINF_EXT_MODULE", "drifting_envs")
    return "drifting"


def test_a_good_env_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPole-v1", "--steps", "60", "--num-envs", "2"]) == 0
    said = capsys.readouterr().out
    assert "CartPole-v1 keeps the contract" in said
    assert "observes states [4]; acts with 2 choices; 500 steps per episode" in said
    assert "steps/s" in said
    assert "fail" not in said


def test_a_broken_env_fails_and_says_how_to_mend_it(
    drifting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-env", drifting, "--steps", "20"]) == 1
    said = capsys.readouterr().out
    assert "fail  same seed" in said
    assert "fix: draw all randomness from a generator that reset(seed=...) seeds" in said


def test_json(drifting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", drifting, "--steps", "20", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert {"name", "status", "found", "fix"} == set(report["findings"][0])


def test_metaworld_by_the_name_of_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("metaworld")
    arguments = ["check-env", "reach-v3", "--steps", "10", "--num-envs", "2"]
    assert main([*arguments, "--set", "terminate_on_success=true"]) == 0
    assert "observes states [39]; acts with 4 numbers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["CartPoll-v1", "--num-envs", "0"], "at least 1"),
        (["x", "--env-type", "metaword"], "did you mean 'metaworld'?"),
        (["CartPole-v1", "--set", "seed"], "--set takes KEY=VALUE, not seed"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_ids_that_do_not_exist_are_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPoll-v1"]) == 1
    assert "near ones: CartPole-v1" in capsys.readouterr().out


def test_which_env_is_meant() -> None:
    assert resolve("push-v3", None, []) == (
        "metaworld",
        {"env_type": "metaworld", "task": "push-v3"},
    )
    assert resolve("mt50", None, [])[0] == "metaworld"
    assert resolve("Hopper-v5", None, ["kwargs.frame_skip=2"]) == (
        "gymnasium",
        {"env_type": "gymnasium", "id": "Hopper-v5", "kwargs": {"frame_skip": 2}},
    )
    assert resolve("push-v3", "envpool", [])[1]["id"] == "push-v3"
    assert resolve("metaworld", None, []) == ("metaworld", {"env_type": "metaworld"})


def test_the_env_of_a_recipe() -> None:
    env_type, cfg = resolve("gymnasium_ppo_mlp", None, ["id=Pendulum-v1", "max_episode_steps=9"])
    assert (env_type, cfg["id"], cfg["max_episode_steps"]) == ("gymnasium", "Pendulum-v1", 9)
    # How many there are, and how they are trained in, is no matter of the env.
    assert not {"total_num_envs", "auto_reset", "group_size"} & set(cfg)
    with pytest.raises(ValueError, match="arithmetic_grpo has no env.train"):
        resolve("arithmetic_grpo", None, [])


def test_a_recipe_that_is_not_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "gymnasium_ppo_mlp", "--set", "ide=Pendulum-v1"]) == 1
    assert "env.train.ide" in capsys.readouterr().err
