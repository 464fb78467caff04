"""The recipes of `examples/embodiment`: each is valid, and short runs of them train."""

from __future__ import annotations

import json

import pytest

from rlinf.config import build_config, config_names, validate_cfg
from rlinf.envs import can_render
from tests.e2e_tests.embodied.conftest import CONFIGS
from tests.e2e_tests.embodied.workers import Env

SHORT = [
    "runner.max_epochs=2",
    "runner.eval_episodes=4",
    "env.eval.total_num_envs=4",
    "algorithm.update_epoch=1",
]


@pytest.mark.parametrize("name", config_names(CONFIGS))
def test_a_recipe_is_valid(name: str) -> None:
    cfg = validate_cfg(build_config(name, config_path=CONFIGS))
    assert cfg.runner.logger.experiment_name == name, "runs of recipes go to folders of their own"


def test_another_gymnasium_id_is_one_override_away() -> None:
    overrides = ["env.train.id=FetchReach-v4"]
    cfg = validate_cfg(build_config("gymnasium_ppo_mlp", overrides, CONFIGS))
    assert cfg.env.eval.id == "FetchReach-v4" and cfg.env.eval.max_episode_steps is None


@pytest.mark.timeout(180)
def test_gymnasium_trains_with_the_step_limit_of_the_id(runners, tmp_path) -> None:
    runner = runners.runner(tmp_path, "gymnasium_ppo_mlp", [*SHORT, "env.train.id=Pendulum-v1"])
    summary = runner.run()
    assert summary["env_steps"] == 2 * 16 * 100
    assert summary["evaluation"]["eval/episodes"] == 4
    assert summary["evaluation"]["eval/episode_len"] == 200
    lines = (runner.folder / "metrics.jsonl").read_text().splitlines()
    # Rollouts are half an episode long and go on where the last one ended.
    assert [json.loads(line)["env/episodes"] for line in lines[:2]] == [0.0, 16.0]


@pytest.mark.timeout(180)
def test_pictures_train(runners, tmp_path) -> None:
    able, reason = can_render()
    if not able:
        pytest.skip(reason)
    short = [*SHORT, "env.train.max_episode_steps=10", "env.eval.max_episode_steps=10"]
    more = ["runner.max_epochs=1", "actor.global_batch_size=80", "runner.eval_episodes=4"]
    more += ["env.train.total_num_envs=8", "env.eval.video_cfg.save_video=false"]
    # MuJoCo draws only if its back-end was chosen before it was first loaded.
    new_env = {"env": (Env, ())}
    summary = runners.runner(tmp_path, "metaworld_ppo_cnn", [*short, *more], new_env).run()
    assert summary["status"] == "finished" and summary["env_steps"] == 8 * 10
