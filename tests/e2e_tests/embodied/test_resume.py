"""A run that was killed and resumed is the run that was not, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from rlinf.utils.checkpoint import CheckpointError
from rlinf.utils.fingerprints import FILE

RECIPE = "gymnasium_ppo_mlp"
STEPS = 6
SHORT = [
    "env.train.id=Pendulum-v1",
    "env.train.max_steps_per_rollout_epoch=20",
    "env.eval.max_episode_steps=20",
    "env.eval.total_num_envs=4",
    "runner.eval_episodes=4",
    "runner.save_interval=1",
    "runner.progress=off",
    "runner.deterministic=true",
    "actor.global_batch_size=80",
    "algorithm.update_epoch=2",
    "actor.optim.lr_scheduler=cosine",
]
MODES = {
    "collocated": ["cluster.component_placement={actor:0,rollout:0,env:0-1}"],
    "disaggregated": ["cluster.component_placement={actor:0-1,rollout:2-3,env:4}"],
    "hybrid": [
        "cluster.component_placement={actor:0-1,rollout:2,env:0}",
        "rollout.pipeline_stage_num=2",
    ],
}


def command(folder: Path, *overrides: str) -> list[str]:
    program = [sys.executable, "-m", "rlinf.cli", "train", RECIPE, *SHORT, *overrides]
    place = [f"runner.logger.log_path={folder.parent}"]
    return [*program, *place, f"runner.logger.experiment_name={folder.name}"]


def metrics(folder: Path) -> list[dict[str, float]]:
    """All that does not depend on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if "time/" not in k and "per_second" not in k}
        for line in lines
    ]


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    place = folder / "checkpoints" / f"global_step_{step}" / "actor" / "tensors"
    out: dict[str, torch.Tensor] = {}
    for number, file in enumerate(sorted(place.glob("*.safetensors"))):
        out |= {f"{number}/{name}": tensor for name, tensor in load_file(file).items()}
    return out


def start_and_await_step_2(folder: Path, arguments: list[str]) -> subprocess.Popen:
    """Starts a run and returns at a random moment after its second checkpoint."""
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while not (folder / "checkpoints" / "global_step_2" / "manifest.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(process.communicate()[1][-4000:])
        time.sleep(0.02)
    time.sleep(random.uniform(0, 0.4))
    return process


def assert_same_run(one: Path, two: Path) -> None:
    assert metrics(one) == metrics(two)
    assert (one / FILE).read_text() == (two / FILE).read_text()
    ours, theirs = tensors(one, STEPS), tensors(two, STEPS)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def undisturbed(own_troupe, tmp_path_factory):
    """Folders of runs that nothing happened to, by mode."""
    runs: dict[str, Path] = {}

    def run(mode: str) -> Path:
        if mode not in runs:
            steps = [*SHORT, *MODES[mode], f"runner.max_epochs={STEPS}"]
            runner = own_troupe.runner(tmp_path_factory.mktemp(mode), RECIPE, steps)
            runner.run()
            own_troupe.end_of_test(sound=True)
            runs[mode] = runner.folder
        return runs[mode]

    return run


ON_REQUEST = pytest.mark.skipif(
    not os.environ.get("RLINF_ALL_TESTS"), reason="takes half a minute; set RLINF_ALL_TESTS=1"
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mode",
    [
        "hybrid",
        pytest.param("collocated", marks=ON_REQUEST),
        pytest.param("disaggregated", marks=ON_REQUEST),
    ],
)
def test_killed_and_resumed_is_as_if_nothing_had_happened(undisturbed, ray_address, tmp_path, mode):
    broken = tmp_path / "broken"
    steps = [*MODES[mode], f"runner.max_epochs={STEPS}"]
    resumable = command(broken, *steps, "runner.resume_dir=auto")
    process = start_and_await_step_2(broken, resumable)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    env = {**os.environ, "RAY_ADDRESS": ray_address}
    done = subprocess.run(resumable, env=env, check=True, capture_output=True, text=True)
    assert "resuming after step" in done.stdout and "not restored" not in done.stdout
    assert_same_run(broken, undisturbed(mode))


@pytest.mark.timeout(300)
def test_a_run_that_restarts_itself_is_as_if_nothing_had_happened(undisturbed, tmp_path):
    folder = tmp_path / "restarted"
    steps = [*MODES["hybrid"], f"runner.max_epochs={STEPS}", "runner.max_restarts=1"]
    process = start_and_await_step_2(folder, command(folder, *steps))
    for child in psutil.Process(process.pid).children(recursive=True):
        if any(part.startswith("ray::EmbodiedFSDPActor") for part in child.cmdline()):
            child.kill()
            break
    else:
        raise AssertionError("there is no actor process")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "restart 1 of at most 1" in said and said.count("RUN FAILED") == 1
    card = json.loads((folder / "workers.failed_1" / "failure.json").read_text())
    assert card["who"].startswith("ActorGroup:") and "SIGKILL" in card["what"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["restarts"] == 1
    assert_same_run(folder, undisturbed("hybrid"))


@pytest.mark.timeout(180)
def test_another_number_of_ranks_and_another_config(troupe, tmp_path, capsys):
    first = [*SHORT, *MODES["collocated"], "runner.max_epochs=1"]
    troupe.runner(tmp_path, RECIPE, first).run()
    more = [*SHORT, *MODES["disaggregated"], "runner.max_epochs=2", "runner.resume_dir=auto"]
    more.append("actor.optim.lr_scheduler=constant")
    with pytest.raises(CheckpointError) as caught:
        troupe.runner(tmp_path, RECIPE, more)
    assert "actor.optim.lr_scheduler: 'cosine' then, 'constant' now" in str(caught.value)
    capsys.readouterr()
    resumed = troupe.runner(tmp_path, RECIPE, [*more, "runner.resume_force=true"])
    said = capsys.readouterr().out
    assert "there were 1 actor ranks and now are 2" in said
    assert "new episodes begin" in said
    resumed.run()
    assert [line["step"] for line in metrics(resumed.folder)][-1] == 2
