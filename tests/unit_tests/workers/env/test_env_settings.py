"""Envs get from other sections what their own leaves open."""

import pytest

from rlinf.envs.options import VectorEnvOptions
from rlinf.workers.env.env_settings import env_settings
from tests.unit_tests.workers.actor.learning import GRPO, make_cfg

EVAL = {"env.eval": {"env_type": "metaworld", "total_num_envs": 4, "max_episode_steps": 12}}


def options(changes, role="train"):
    return VectorEnvOptions.from_cfg(env_settings(make_cfg({**EVAL, **changes}), role), "metaworld")


def test_training_envs_start_alike_in_the_groups_of_the_algorithm():
    assert options(GRPO).group_size == 4
    assert options({}).group_size == 1
    assert options(GRPO, "eval").group_size == 1


@pytest.mark.parametrize("role", ["train", "eval"])
def test_a_nan_does_what_the_run_says(role):
    assert options({}, role).on_nan == "error"
    assert options({"runner.on_nan": "skip"}, role).on_nan == "skip"
    own = {"runner.on_nan": "skip", f"env.{role}.on_nan": "error"}
    assert options(own, role).on_nan == "error"


@pytest.mark.parametrize("role", ["train", "eval"])
def test_another_seed_of_the_run_gives_other_episodes(role):
    assert options({"runner.seed": 7}, role).seed == 7
    assert options({"runner.seed": 7, f"env.{role}.seed": 3}, role).seed == 3


def test_the_config_itself_stays_as_it_is():
    cfg = make_cfg(GRPO)
    assert env_settings(cfg, "train").group_size == 4
    assert cfg.env.train.group_size is None
