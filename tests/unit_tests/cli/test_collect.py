"""`rlinf collect`: one process, one new folder, and errors that say what to do."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

from rlinf.cli import main
from rlinf.config import env_plugins
from rlinf.data.lerobot import LeRobotDataset, episodes
from rlinf.envs import get_env_cls
from rlinf.models import get_model
from rlinf.workers.env.describe_envs import describe_envs
from rlinf.workers.env.policy_expert import PolicyExpert


def collect(config, *overrides) -> int:
    return main(["collect", str(config), *overrides])


def values(folder):
    return [episode.values for episode in LeRobotDataset(folder).episodes()]


def test_random_episodes_of_choices(embodied, tmp_path, capsys) -> None:
    folder = tmp_path / "demos"
    assert collect(embodied, "collect.policy=random", f"collect.save_dir={folder}") == 0
    out, shown = capsys.readouterr()
    assert f"20 episodes, {len(LeRobotDataset(folder))} frames" in out
    assert "episode 20/20" in shown
    found = list(episodes(LeRobotDataset(folder)))
    assert len(found) == 20 and found[0].actions.dtype == np.int64
    assert all(len(e.actions) < 64 or e.truncations[-1] for e in found)
    facts = json.loads((folder / "meta" / "collect.json").read_text())
    assert facts["policy"] == "random" and facts["seed"] == 42
    assert facts["reward"] == {"reward_coef": 1.0, "use_rel_reward": False}
    assert [e["length"] for e in facts["episodes"]] == [len(e) for e in found]


def test_seeds_decide(embodied, tmp_path) -> None:
    def play(name, *overrides):
        further = ("collect.policy=random", "collect.episodes=3", f"collect.save_dir={name}")
        assert collect(embodied, *further, *overrides) == 0
        return [v["observation.state"] for v in values(name)]

    one = play(tmp_path / "one")
    two = play(tmp_path / "two", "collect.num_envs=1")
    other = play(tmp_path / "other", "collect.seed=43")
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one[0][0], other[0][0])


def test_tasks_have_as_many_episodes_as_they_weigh(tmp_path) -> None:
    """As training plays them, when it begins."""
    quick = ("env.train.max_episode_steps=2", "collect.policy=random", "collect.episodes=6")
    weights = "env.train.start_sampler.weights={handle-pull-v3:5}"
    folder = tmp_path / "demos"
    asked = (*quick, weights, f"collect.save_dir={folder}")
    assert collect("metaworld_sft_oft_handles", *asked) == 0
    played = [episode.tasks[0] for episode in LeRobotDataset(folder).episodes()]
    assert Counter(played) == {"pull the handle up": 5, "press the handle down": 1}


def test_nothing_is_overwritten(embodied, tmp_path, capsys) -> None:
    (tmp_path / "demos").mkdir()
    (tmp_path / "demos" / "mine").write_text("mine")
    assert collect(embodied, "collect.policy=random", f"collect.save_dir={tmp_path}/demos") == 1
    assert "is there already, and nothing is overwritten" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "demos").iterdir()] == ["mine"]


def test_what_is_missing_is_named(embodied, tmp_path, capsys) -> None:
    assert collect(embodied) == 1
    assert "collect.save_dir says nowhere to write" in capsys.readouterr().err
    assert collect(embodied, f"collect.save_dir={tmp_path}/demos") == 1
    assert "for env type gymnasium under this name; known: random" in capsys.readouterr().err
    assert collect(embodied, "collect.episodes=0") == 1
    assert "collect.episodes = 0" in capsys.readouterr().err
    assert collect(embodied, f"collect.save_dir={tmp_path}/x", "collect.policy=no/such") == 1
    assert "no/such" in capsys.readouterr().err
    assert not (tmp_path / "demos").exists() and not (tmp_path / "x").exists()


def test_without_a_success_no_folder_is_left(embodied, tmp_path, capsys) -> None:
    further = ("collect.policy=random", f"collect.save_dir={tmp_path}/demos")
    assert collect(embodied, *further, "collect.only_success=true") == 1
    assert "does not say whether a task is solved" in capsys.readouterr().err
    assert not (tmp_path / "demos").exists()


def test_an_expert_of_an_extension(embodied, tmp_path, monkeypatch) -> None:
    (tmp_path / "my_expert.py").write_text(
        "import numpy as np\n"
        "from rlinf.envs import Expert, register_expert\n"
        "@register_expert('scripted', env_type='gymnasium', replaces=True)\n"
        "class Balance(Expert):\n"
        "    def act(self, obs, slots):\n"
        "        return (obs['states'][slots, 2:].numpy().sum(1, keepdims=True) > 0)\n"
    )
    monkeypatch.chdir(tmp_path)
    from rlinf.envs import experts

    monkeypatch.setattr(experts._experts, "_targets", dict(experts._experts._targets))
    monkeypatch.setitem(env_plugins._names, "expert", set(env_plugins._names["expert"]))
    further = ("runner.ext_modules=[my_expert]", "collect.save_dir=demos", "collect.episodes=2")
    assert collect(embodied, *further) == 0
    assert [len(v["action"]) for v in values("demos")] == [64, 64]


@pytest.mark.parametrize("sample", [False, True])
def test_a_policy_with_chunks_acts_alike_in_any_number_of_envs(sample) -> None:
    cfg = {"env_type": "gymnasium", "id": "CartPole-v1", "max_episode_steps": 20, "seed": 0}
    section = {"model_type": "mlp_policy", "num_action_chunks": 3}

    def play(num_envs):
        env = get_env_cls("gymnasium")(cfg, num_envs)
        torch.manual_seed(0)
        policy = get_model(section, describe_envs([env], []))
        expert = PolicyExpert(policy, env, sample=sample, seed=5)
        obs, _ = env.begin_episodes(range(num_envs), evaluation=False)
        slots = list(range(num_envs))
        expert.begin(slots, slots)
        taken = []
        for _ in range(7):
            action = expert.act(obs, slots)
            taken.append(action[:, 0])
            obs = env.step(action)[0]
        env.close()
        return np.stack(taken, axis=1)

    np.testing.assert_array_equal(play(4)[:2], play(2))
