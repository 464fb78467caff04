"""Envs whose actions are choices learn by PPO, as the recipe is."""

from __future__ import annotations

import json

import pytest
import torch

from rlinf.hybrid_engines.export import export_checkpoint
from rlinf.models.export.rlinf_policy import load_policy
from tests.e2e_tests.embodied import keypad
from tests.long_tests import long_test

KEYPAD = f"env.train.id={keypad.__name__}:Keypad-v0"


def train(runners, folder, overrides):
    runner = runners.runner(folder, "gymnasium_ppo_mlp", overrides)
    return runner, runner.run()


@pytest.mark.timeout(240)
def test_several_choices_at_a_time_are_learned_and_exported(runners, tmp_path):
    size = ["env.train.max_steps_per_rollout_epoch=40", "actor.global_batch_size=160"]
    last = ["runner.max_epochs=10", "runner.save_interval=10", "runner.eval_episodes=20"]
    runner, summary = train(runners, tmp_path, [KEYPAD, *size, *last])
    lines = (runner.folder / "metrics.jsonl").read_text().splitlines()
    returns = [row["env/return"] for row in map(json.loads, lines) if "env/return" in row]
    assert returns[0] < 0.4 * keypad.STEPS and returns[-1] > 2 * returns[0]
    assert summary["evaluation"]["eval/return"] > 0.95 * keypad.STEPS
    assert not any("log_std" in name for name in runner.actor.weights().wait()[0])
    # The policy alone, without the package, plays as well.
    policy = load_policy(export_checkpoint(runner.folder, "safetensors", tmp_path / "policy"))
    env, total = keypad.Keypad(), 0.0
    for seed in range(20):
        obs, over = env.reset(seed=seed)[0], False
        while not over:
            action = policy(states=torch.from_numpy(obs)[None])[0, 0]
            obs, reward, over, _, _ = env.step(action.numpy())
            total += reward / 20
    assert total > 0.95 * keypad.STEPS


def batch_of(runners, folder, overrides):
    short = ["env.train.max_steps_per_rollout_epoch=16", "actor.global_batch_size=64"]
    runner = runners.runner(folder, "gymnasium_ppo_mlp", [KEYPAD, *short, *overrides])
    runner.update_rollout_weights()
    runner.generate_rollouts()
    return runner.actor.batch().wait()[0]


@pytest.mark.timeout(180)
def test_choices_do_not_depend_on_how_envs_are_split(runners, tmp_path):
    chunks = "actor.model.num_action_chunks=2"
    plain = batch_of(runners, tmp_path, [chunks, "rollout.pipeline_stage_num=1"])
    staged = batch_of(runners, tmp_path, [chunks, "rollout.pipeline_stage_num=2"])
    assert plain["action"].dtype == torch.int64 and plain["action"].shape == (8, 16, 2 * 2)
    # With two stages, the first halves of both workers' envs come before the second halves.
    order = [*range(0, 4), *range(8, 12), *range(4, 8), *range(12, 16)]
    assert torch.equal(staged["action"], plain["action"][:, order])
    assert torch.equal(staged["states"], plain["states"][:, order])


@long_test
@pytest.mark.timeout(900)
def test_cartpole_is_learned(runners, tmp_path):
    overrides = ["env.train.id=CartPole-v1", "runner.max_epochs=40"]
    _, summary = train(runners, tmp_path, overrides)
    assert summary["evaluation"]["eval/return"] >= 400


@long_test
@pytest.mark.timeout(900)
def test_acrobot_is_learned(runners, tmp_path):
    overrides = ["env.train.id=Acrobot-v1", "runner.max_epochs=60"]
    _, summary = train(runners, tmp_path, overrides)
    assert summary["evaluation"]["eval/return"] > -100
