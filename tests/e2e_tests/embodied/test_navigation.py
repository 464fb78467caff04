"""Whole jobs of a policy that remembers: wherever it acts, and resumed amid episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

RECIPE = "navigation_ppo_cma"
SHORT = [
    "cluster.component_placement={actor:0,rollout:0-1,env:0-1}",
    "actor.model.rnn_size=16",
    "actor.model.channels=[8,8]",
    "actor.model.sequence_length=8",
    "env.train.total_num_envs=8",
    "env.train.max_episode_steps=12",
    "env.train.max_steps_per_rollout_epoch=16",
    "env.eval.total_num_envs=4",
    "env.eval.max_episode_steps=6",
    "actor.global_batch_size=64",
    "algorithm.update_epoch=1",
    "runner.max_epochs=3",
    "runner.eval_episodes=6",
    "runner.val_check_interval=-1",
    "runner.agreement.interval=1",
    "runner.agreement.tolerance=1e-4",
    "runner.progress=off",
    "runner.logger.logger_backends=[jsonl]",
]


def metrics(folder: Path, key: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


@pytest.mark.timeout(300)
def test_the_same_wherever_it_acts_and_when_resumed(runners, tmp_path) -> None:
    whole = runners.runner(tmp_path / "whole", RECIPE, SHORT)
    assert whole.env is whole.rollout
    summary = whole.run()
    assert summary["status"] == "finished" and summary["evaluation"]["eval/episodes"] == 6
    gaps = metrics(whole.folder, "train/agreement/logprob_max")
    assert len(gaps) == 3 and max(gaps) <= 1e-4

    begun = runners.runner(
        tmp_path / "begun", RECIPE, [*SHORT, "runner.max_epochs=1", "runner.save_interval=1"]
    )
    begun.run()
    middle = f"runner.resume_dir={begun.folder}/checkpoints/global_step_1"
    elsewhere = [*SHORT, middle, "rollout.in_env_process=false"]
    rest = runners.runner(tmp_path / "rest", RECIPE, elsewhere)
    assert rest.env is not rest.rollout
    again = rest.run()
    assert again["evaluation"]["eval/return"] == summary["evaluation"]["eval/return"]
    expected, weights = (runner.actor.weights().wait()[0] for runner in (whole, rest))
    for name, tensor in expected.items():
        assert torch.equal(tensor, weights[name]), name
