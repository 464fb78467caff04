"""What `benchmarks.embodied` makes of its contestants' answers, and the slowed policy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import embodied, harness, slow_policy
from benchmarks.communication import Turns
from benchmarks.harness import Board
from rlinf.utils.env_spec import EnvSpec
from tests.unit_tests.models.test_registry import fresh_registries  # noqa: F401 - applies here, too


class Scripted:
    """A contestant with a fixed speed."""

    def __init__(self, name: str, speed: float):
        self.name = name
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._speed = speed

    def ask(self, do: str, timeout: float = 0.0, **arguments: Any) -> Any:
        self.asked.append((do, arguments))
        if do == "step":
            return self._speed
        if do == "train" and "recipe" in arguments:
            return self._ours(arguments["overrides"])
        return {"total": self._speed, "rollout": 2 * self._speed, "update": 0.2}

    def _ours(self, overrides: list[str]) -> dict[str, float]:
        """A policy whose cost grows with what was asked; two stages hide most of it."""
        given = dict(item.split("=", 1) for item in overrides)
        amount = float(given.get("actor.model.slow_passes", 0))
        amount += 100 * float(given.get("actor.model.slow_ms", 0))
        envs, policy = 0.5, 0.01 * amount
        staged = given.get("rollout.pipeline_stage_num") == "2"
        seconds = (max(envs, policy) if staged else envs + policy) + 0.1
        return {
            "total": self._speed,
            "rollout": 1600 / seconds,
            "update": 0.3,
            "generate_rollouts": seconds,
            "env_step": envs,
            "predict": policy,
        }


def contestants(*names_and_speeds: tuple[str, float]) -> list[Any]:
    return [Scripted(name, speed) for name, speed in names_and_speeds]


def test_training_rows() -> None:
    running = contestants(
        (embodied.OURS, 2600.0),
        (embodied.SUBPROC, 900.0),
        (embodied.DUMMY, 1000.0),
        (embodied.BARE, 3000.0),
        (embodied.UNPIPELINED, 0.0),
    )
    board = Board([contestant.name for contestant in running])
    embodied.measure_training(board, Turns(board, running, rounds=2), updates=5)
    assert not board.failures
    table = board.render()
    assert "≥ 1.8 x SB3 SubprocVecEnv: 2.89 x met; ≥ 1.8 x SB3 DummyVecEnv: 2.60 x met" in table
    # Without a policy to slow it, ours rolls out at 1600 steps in 0.6 s.
    assert "≥ 0.8 x bare, our envs: 0.89 x met" in table
    assert "| one update, 10 x 4 minibatches (s) | 0.300 | 0.200 | 0.200 | - | - |" in table
    ours, subproc, _, bare, unpipelined = running
    assert [do for do, _ in ours.asked] == ["train", "train"]
    assert "runner.max_epochs=5" in ours.asked[0][1]["overrides"]
    assert subproc.asked[0] == ("prepare", {"task": "button-press-v3", "envs": 16, "horizon": 100})
    assert ("step", {"steps": 500}) in bare.asked
    assert not unpipelined.asked


def test_the_policy_is_slowed_until_it_costs_what_the_envs_do() -> None:
    running = contestants((embodied.OURS, 1.0), (embodied.UNPIPELINED, 1.0))
    board, notes = Board([contestant.name for contestant in running]), []
    embodied.measure_pipeline(board, Turns(board, running, rounds=1), notes, updates=4)
    assert not board.failures
    table = board.render()
    # 0.5 s each: 1.1 s with one stage, 0.6 s with two.
    assert table.count("≥ 1.5 x ours, 1 stage: 1.83 x met") == len(embodied.SLOWNESSES)
    assert all("0.500 s in the envs, 0.500 s in the policy" in note for note in notes)
    of_waiting = [a for _, a in running[0].asked if "actor.model.slow_ms=0.5" in a["overrides"]]
    assert of_waiting and of_waiting[0]["extension"] == "benchmarks.slow_policy"


def test_every_contestant_has_a_program() -> None:
    known = embodied.entries()
    for entry in known:
        assert (harness.PROGRAMS / entry.program).is_file()
    assert len({entry.name for entry in known}) == len(known)
    threads = {entry.name: entry.env.get("OMP_NUM_THREADS") for entry in known}
    assert threads[embodied.ONE_THREAD] == "1"


def test_stable_baselines_that_is_missing_is_said_before_anything_starts(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(ValueError, match="pip install stable-baselines3"):
        embodied.check_sb3(str(python))


def test_bare_envs_are_stepped_in_processes(tmp_path: Path) -> None:
    pytest.importorskip("metaworld")
    entries = [e for e in embodied.entries() if e.name == embodied.BARE]
    with harness.live(entries, tmp_path) as [bare]:
        bare.ask("prepare", task="button-press-v3", envs=2, horizon=5)
        assert bare.ask("step", steps=8) > 0


def policy(**keys: Any) -> slow_policy.SlowPolicy:
    from rlinf.models import get_model

    slow_policy.register()
    spec = EnvSpec(obs_dim=5, action_dim=2, action_low=-1.0, action_high=1.0)
    model = get_model({"model_type": "slow_mlp_policy", **keys}, spec)
    assert isinstance(model, slow_policy.SlowPolicy)
    return model


def test_the_slow_policy_acts_as_the_fast_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    torch.manual_seed(0)
    fast = policy()
    slow = policy(slow_passes=3, slow_ms=2.0)
    slow.load_state_dict(fast.state_dict())
    obs, noise = {"states": torch.randn(4, 5)}, torch.randn(4, 2)
    (a, found), (b, expected) = (p.predict_action_batch(obs, noise=noise) for p in (slow, fast))
    assert torch.equal(a, b)
    assert torch.equal(found["prev_logprobs"], expected["prev_logprobs"])
    assert waited == [pytest.approx(4 * 2.0 / 1e3)]
