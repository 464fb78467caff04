"""A run in one process, for debugging, comes to the numbers of one with a process per worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = [
    "env.train.total_num_envs=4",
    "env.train.max_steps_per_rollout_epoch=20",
    "env.train.max_episode_steps=20",
    "env.eval.max_episode_steps=20",
    "runner.eval_episodes=4",
    "env.eval.video_cfg.save_video=false",
    "actor.global_batch_size=40",
    "runner.max_steps=3",
]


def train(folder: Path, address: str, *words: str) -> tuple[list[dict[str, float]], str]:
    """Trains as a user does; returns the metrics that do not depend on time, and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "rlinf.cli", "train", "metaworld_ppo_mlp", *SHORT, *words]
        + [f"runner.run_dir={folder}"],
        env={**os.environ, "RAY_ADDRESS": address},
        cwd=folder.parent,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("time", "per_second", "seconds")
    kept = [{k: v for k, v in line.items() if not any(t in k for t in timed)} for line in lines]
    return kept, done.stdout


@pytest.mark.timeout(300)
def test_in_one_process_a_run_comes_to_the_same_numbers(ray_address, tmp_path):
    alone, said = train(tmp_path / "inline", ray_address, "--debug=inline")
    one_each = "cluster.component_placement={actor:0,rollout:0,env:0}"
    apart, _ = train(tmp_path / "apart", ray_address, one_each)
    assert alone == apart and len(alone) >= 3
    assert "starting Ray" not in said
