"""Runs of one experiment, as a user starts them: none overwrites another, one is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinf.utils.runs import experiment_runs, status_of

RECIPE = "gymnasium_ppo_mlp"
SHORT = [
    "env.train.id=Pendulum-v1",
    "env.train.total_num_envs=2",
    "env.train.max_steps_per_rollout_epoch=20",
    "actor.global_batch_size=40",
    "~env.eval",
    "runner.progress=off",
    "cluster.component_placement={actor:0,rollout:0,env:0}",
]


def train(folder: Path, address: str, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rlinf.cli", "train", RECIPE, *SHORT, *overrides],
        env={**os.environ, "RAY_ADDRESS": address},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def steps_of(run: Path) -> list[int]:
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.timeout(300)
def test_runs_keep_out_of_each_others_way_and_a_stopped_one_goes_on(ray_address, tmp_path):
    first = train(tmp_path, ray_address, "runner.max_epochs=2")
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 0, said
    stopped = train(tmp_path, ray_address, "runner.max_epochs=100000")
    experiment = tmp_path / "logs" / RECIPE
    deadline = time.monotonic() + 120
    while len(experiment_runs(experiment)) < 2 or not steps_of(experiment_runs(experiment)[-1]):
        assert stopped.poll() is None and time.monotonic() < deadline, stopped.communicate()[0]
        time.sleep(0.05)
    older, newer = experiment_runs(experiment)
    assert (experiment / "latest").resolve() == newer and status_of(newer) == "running"
    stopped.send_signal(signal.SIGINT)
    said, _ = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, said
    last = max(steps_of(newer))
    assert "Traceback" not in said and f"stopped after step {last}; go on with" in said
    assert (status_of(older), status_of(newer)) == ("finished", "stopped")
    assert steps_of(older) == [1, 2]
    resumed = train(
        tmp_path, ray_address, f"runner.max_epochs={last + 2}", "runner.resume_dir=auto"
    )
    said, _ = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, said
    assert experiment_runs(experiment) == [older, newer], "it goes on in its folder"
    assert steps_of(newer) == list(range(1, last + 3)) and status_of(newer) == "finished"
    summary = json.loads((newer / "summary.json").read_text())
    assert summary["checkpoint"] == str(newer / "checkpoints" / f"global_step_{last + 2}")
    again = (newer / "config.yaml").read_text()
    assert "run_dir: null" in again and "resume_dir: null" in again, "it can be run again"
    assert os.listdir(tmp_path) == ["logs"], "nothing else is left in the current folder"
