"""Short runs of the recipes that learn from a replay buffer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlinf.cli import main

SHORT = [
    "runner.max_epochs=4",
    "algorithm.update_epoch=4",
    "algorithm.replay_buffer.min_buffer_size=64",
    "actor.global_batch_size=32",
    "env.eval.total_num_envs=4",
    "env.eval.max_episode_steps=20",
    "env.eval.video_cfg.save_video=false",
    "runner.eval_episodes=4",
]


def train(runners: Any, folder: Path, recipe: str, *more: str) -> dict[str, Any]:
    runner = runners.runner(folder, recipe, [*SHORT, *more])
    summary = runner.run()
    lines = map(json.loads, (runner.folder / "metrics.jsonl").read_text().splitlines())
    updates = [line["train/gradient_updates"] for line in lines if "train/gradient_updates" in line]
    assert len(updates) == 4 and updates[-1] == summary["gradient_updates"] > 0
    assert summary["status"] == "finished" and summary["evaluation"]["eval/episodes"] == 4
    assert summary["replay_size"] == summary["env_steps"] == 4 * 64
    return summary


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "recipe", ["gymnasium_td3_mlp", "gymnasium_sac_discrete", "metaworld_crossq_mlp"]
)
def test_a_recipe_learns_from_replay(runners, tmp_path, recipe):
    summary = train(runners, tmp_path, recipe)
    assert "demo_episodes" not in summary


@pytest.mark.timeout(240)
def test_rlpd_learns_from_the_demonstrations_that_its_recipe_collects(
    runners, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["collect", "metaworld_rlpd_mlp", "collect.episodes=3"]) == 0
    (folder,) = (tmp_path / "demonstrations").iterdir()
    place = f"algorithm.demo_buffer.load_path={folder}"
    summary = train(runners, tmp_path / "runs", "metaworld_rlpd_mlp", place)
    assert summary["demo_episodes"] == 3
