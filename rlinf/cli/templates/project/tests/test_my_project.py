"""The parts on their own: they need no cluster and no training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rlinf.config import build_config, validate_cfg
from rlinf.envs import get_env_cls
from rlinf.envs.checker import check_env
from rlinf.models import get_model
from rlinf.models.embodiment.check_policy import check_policy
from rlinf.utils.env_spec import EnvSpec

import my_project  # noqa: F401 (it registers env and policy)
from my_project.env import PointMass
from my_project.reward import ARRIVAL, reward

CONFIG = Path(__file__).parents[1] / "config"


def test_the_recipe_is_valid():
    cfg = validate_cfg(build_config("my_project", config_path=CONFIG))
    assert cfg.env.train.env_type == "point_mass"


def test_the_env_keeps_the_contract():
    cfg = {"env_type": "point_mass", "max_episode_steps": 50}
    findings = list(check_env(get_env_cls("point_mass"), cfg, steps=60))
    assert [finding.found for finding in findings if finding.status == "fail"] == []


def test_the_policy_computes_again_what_it_did():
    section = {"model_type": "point_mass_policy", "hidden_size": 16, "add_value_head": True}
    policy = get_model(section, EnvSpec(obs_dim=6, action_dim=2))
    assert check_policy(policy, {"states": torch.randn(8, 6)}) == []


def test_the_reward_is_for_progress_and_arrival():
    assert reward(1.0, 0.5, 0.0, False, 0.01) > 0 > reward(0.5, 1.0, 0.0, False, 0.01)
    assert reward(0.1, 0.1, 0.0, True, 0.01) == pytest.approx(ARRIVAL)
    assert reward(0.1, 0.1, 1.0, False, 0.01) < 0


def test_a_good_controller_solves_the_task():
    env = PointMass()
    solved = 0
    for seed in range(20):
        env.reset(seed=seed)
        for _ in range(50):
            force = 2 * (env.goal - env.place) - 15 * env.velocity
            _, _, done, _, _ = env.step(force)
            if done:
                solved += 1
                break
    assert solved == 20
