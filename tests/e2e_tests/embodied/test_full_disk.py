"""A run whose disk is full goes on: it loses files, says so once each, and comes to its end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = [
    "env.train.total_num_envs=4",
    "env.train.max_steps_per_rollout_epoch=20",
    "env.train.max_episode_steps=20",
    "env.eval.max_episode_steps=20",
    "actor.global_batch_size=40",
    "runner.eval_episodes=4",
    "runner.max_steps=6",
    "runner.save_interval=2",
    "env.eval.video_cfg.save_video=false",
    "cluster.component_placement.env=0",
]
SCRIPT = """
mount -t tmpfs -o size=600k tmpfs "$1" || exit 99
cd "$1" && shift && "$@"
code=$?
# What is left goes with the mount.
cp -r logs/metaworld_ppo_mlp/latest/. "$COPY"
exit $code
"""


def may_mount() -> bool:
    """Returns whether this user can have a file system of a given size."""
    if shutil.which("unshare") is None:
        return False
    trial = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(trial, capture_output=True).returncode == 0


@pytest.mark.timeout(300)
@pytest.mark.skipif(not may_mount(), reason="needs the right to mount a small file system")
def test_a_run_on_a_full_disk_comes_to_its_end(tmp_path):
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    copy.mkdir()
    # A Ray of its own: its processes see the same disk.
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"COPY": str(copy)}
    env["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
    train = [sys.executable, "-m", "rlinf.cli", "train", "metaworld_ppo_mlp", *SHORT]
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", SCRIPT, "bash", disk, *train],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    summary = json.loads((copy / "summary.json").read_text())
    assert (summary["status"], summary["global_step"]) == ("finished", 6)
    assert summary["checkpoint_failures"] == 3 and summary["checkpoint"] is None
    assert summary["evaluation"]
    assert done.stdout.count("could not be saved") == 3
    assert "Traceback" not in done.stdout, done.stdout
