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

from rlinf.cli import main
from rlinf.utils.checkpoint import Checkpoint
from rlinf.utils.phases import PHASES
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


def wait_for_steps(experiment: Path, runs: int, process: subprocess.Popen[str]) -> Path:
    """Waits until the last of so many runs has made a step."""
    deadline = time.monotonic() + 120
    while len(experiment_runs(experiment)) < runs or not steps_of(experiment_runs(experiment)[-1]):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.05)
    return experiment_runs(experiment)[-1]


@pytest.mark.timeout(300)
def test_runs_keep_out_of_each_others_way_and_a_stopped_one_goes_on(ray_address, tmp_path):
    first = train(tmp_path, ray_address, "runner.max_epochs=2")
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 0, said
    stopped = train(tmp_path, ray_address, "runner.max_epochs=100000")
    experiment = tmp_path / "logs" / RECIPE
    wait_for_steps(experiment, 2, stopped)
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


@pytest.mark.timeout(400)
def test_a_run_saves_and_stops_when_it_is_asked_to(ray_address, tmp_path, capsys):
    process = train(tmp_path, ray_address, "runner.max_epochs=100000", "runner.progress=plain")
    experiment = tmp_path / "logs" / RECIPE
    run = wait_for_steps(experiment, 1, process)
    assert main(["checkpoint", str(experiment)]) == 0
    place = capsys.readouterr().out.rpartition("checkpoint: ")[2].strip()
    saved = Checkpoint.open(place)
    assert saved.path.parent == run / "checkpoints" and status_of(run) == "running"
    assert main(["stop", str(experiment)]) == 0
    said = capsys.readouterr().out
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 143, output
    last = max(steps_of(run))
    assert f"is stopped after step {last}" in said and f"global_step_{last}" in said
    assert last > saved.step, "it went on after the checkpoint"
    assert f"stopped after step {last}; go on with" in output and "Traceback" not in output
    assert not (run / "requests").exists()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "stopped" and summary["training_seconds"] > 0
    assert summary["global_step"] == last and summary["evaluation"] is None
    told = ("imports", "start_ray", "launch", "build", "training", "stop")
    assert all(summary["phases"][name] > 0 for name in told)
    assert sum(summary["phases"].values()) <= summary["wall_seconds"]
    # What takes a second is told while there are no steps yet; importing torch always does. (The
    # launch is of several groups, each told by itself.)
    told = ["imports", *(n for n in ("start_ray", "build") if summary["phases"][n] >= 1.1)]
    begin = output.index("step 1/100000")
    assert all(output.index(f"{PHASES[name]} ... ") < begin for name in told)
    assert main(["stop", str(run)]) == 1
