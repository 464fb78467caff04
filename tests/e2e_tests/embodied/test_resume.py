"""A run that was killed and resumed is the run that was not, bit for bit."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from rlinf.cli.worker_logs import find_logs
from rlinf.utils.checkpoint import CheckpointError
from rlinf.utils.fingerprints import FILE

RECIPE = "gymnasium_ppo_mlp"
STEPS = 8
SHORT = [
    "env.train.id=Pendulum-v1",
    "env.train.max_steps_per_rollout_epoch=10",
    "~env.eval",
    "runner.logger.logger_backends=[jsonl]",
    "runner.save_interval=1",
    "runner.progress=off",
    "runner.deterministic=true",
    "actor.global_batch_size=80",
    "algorithm.update_epoch=1",
    "actor.optim.lr_scheduler=cosine",
]
# Places that the runners keeps processes for, where a mode leaves the choice.
MODES = {
    "collocated": ({"actor": "0", "rollout": "0", "env": "0-1"}, []),
    "disaggregated": ({"actor": "0-1", "rollout": "2", "env": "3"}, []),
    # Episodes begin anew with the last checkpoint: what they left behind is compared, too.
    "hybrid": (
        {"actor": "0", "rollout": "2", "env": "0-1"},
        [
            "rollout.pipeline_stage_num=2",
            "env.train.env_type=metaworld",
            "~env.train.id",
            "+env.train.max_episode_steps=20",
        ],
    ),
}


def overrides_of(mode: str, *more: str) -> list[str]:
    places, further = MODES[mode]
    placed = ",".join(f"{role}:{ranks}" for role, ranks in places.items())
    return [*SHORT, f"cluster.component_placement={{{placed}}}", *further, *more]


def start(folder: Path, address: str, overrides: list[str]) -> subprocess.Popen:
    """Starts the program, which joins the Ray of the tests; returns after its second checkpoint."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rlinf.cli", "train", RECIPE, *overrides),
            f"runner.run_dir={folder}",
        ],
        env={**os.environ, "RAY_ADDRESS": address},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 200
    while not (folder / "checkpoints" / "global_step_2" / "manifest.json").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(process.communicate()[1][-4000:])
        time.sleep(0.02)
    return process


def workers_of(folder: Path, group: str | None = None) -> list[int]:
    """Processes of a run, as their logs tell."""
    logs = [path.read_text() for path in find_logs(folder, group).values()]
    return [int(pid) for log in logs for pid in re.findall(r"starts, pid (\d+) on node", log)]


def kill(pids: list[int]) -> None:
    """Kills processes, all at once."""
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def start_and_kill(folder: Path, address: str, overrides: list[str]) -> None:
    """Kills a run, driver and workers, at a random moment after its second checkpoint."""
    for _ in range(3):
        process = start(folder, address, overrides)
        everyone = [process.pid, *workers_of(folder)]
        assert len(everyone) > 3
        time.sleep(random.uniform(0, 0.4))
        kill(everyone)
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            return
        # It was faster than we are.
        shutil.rmtree(folder)
    raise AssertionError("no run could be killed before its end")


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


def parts(folder: Path, step: int) -> dict[str, bytes]:
    """What env workers, rollout workers and the runner remember, as it is on the disk."""
    place = folder / "checkpoints" / f"global_step_{step}"
    files = [*place.glob("env/*"), *place.glob("rollout/*"), place / "runner.json"]
    return {str(file.relative_to(place)): file.read_bytes() for file in files}


def assert_same_run(one: Path, two: Path) -> None:
    assert metrics(one) == metrics(two)
    assert (one / FILE).read_text() == (two / FILE).read_text()
    ours, theirs = tensors(one, STEPS), tensors(two, STEPS)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    ours, theirs = parts(one, STEPS), parts(two, STEPS)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.fixture(scope="module")
def undisturbed(own_runners, tmp_path_factory):
    """Folders of runs that nothing happened to, by mode."""
    runs: dict[str, Path] = {}

    def run(mode: str) -> Path:
        if mode not in runs:
            overrides = overrides_of(mode, f"runner.max_epochs={STEPS}")
            runner = own_runners.runner(tmp_path_factory.mktemp(mode), RECIPE, overrides)
            runner.run()
            own_runners.end_of_test(sound=True)
            runs[mode] = runner.folder
        return runs[mode]

    return run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_killed_and_resumed_is_as_if_nothing_had_happened(
    undisturbed, runners, ray_address, tmp_path, capsys, mode
):
    broken = tmp_path / "broken"
    # Names of groups are part of the configuration, and processes of the runners have their own.
    names = runners.group_names(MODES[mode][0])
    overrides = overrides_of(mode, f"runner.max_epochs={STEPS}", "runner.resume_dir=auto", *names)
    start_and_kill(broken, ray_address, overrides)
    overrides += [f"runner.run_dir={broken}"]
    resumed = runners.runner(tmp_path, RECIPE, overrides)
    said = capsys.readouterr().out
    assert "resuming after step" in said and "not restored" not in said
    resumed.run()
    assert_same_run(broken, undisturbed(mode))


@pytest.mark.timeout(300)
def test_a_run_that_restarts_itself_is_as_if_nothing_had_happened(
    undisturbed, ray_address, tmp_path
):
    folder = tmp_path / "restarted"
    steps = (f"runner.max_epochs={STEPS}", "runner.max_restarts=1")
    process = start(folder, ray_address, overrides_of("hybrid", *steps))
    kill(workers_of(folder, "ActorGroup")[:1])
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "restart 1 of at most 1" in said and said.count("RUN FAILED") == 1
    card = json.loads((folder / "workers.failed_1" / "failure.json").read_text())
    assert card["who"].startswith("ActorGroup:") and "SIGKILL" in card["what"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["restarts"] == 1
    assert_same_run(folder, undisturbed("hybrid"))


@pytest.mark.timeout(180)
def test_another_number_of_ranks_and_another_config(runners, tmp_path, capsys):
    first = overrides_of("collocated", "runner.max_epochs=1")
    runners.runner(tmp_path, RECIPE, first).run()
    more = overrides_of("disaggregated", "runner.max_epochs=2", "runner.resume_dir=auto")
    more.append("actor.optim.lr_scheduler=constant")
    with pytest.raises(CheckpointError) as caught:
        runners.runner(tmp_path, RECIPE, more)
    assert "actor.optim.lr_scheduler: 'cosine' then, 'constant' now" in str(caught.value)
    capsys.readouterr()
    resumed = runners.runner(tmp_path, RECIPE, [*more, "runner.resume_force=true"])
    said = capsys.readouterr().out
    assert "there were 1 actor ranks and now are 2" in said
    assert "new episodes begin" in said
    resumed.run()
    assert [line["step"] for line in metrics(resumed.folder)][-1] == 2


@pytest.mark.timeout(180)
def test_an_env_that_cannot_be_saved_costs_its_episodes_and_nothing_else(runners, tmp_path, capsys):
    robot = "env.train.id=tests.e2e_tests.embodied.robot:Robot-v0"
    overrides = overrides_of("collocated", robot, "runner.resume_dir=auto")
    capsys.readouterr()
    first = runners.runner(tmp_path, RECIPE, [*overrides, "runner.max_epochs=2"])
    summary = first.run()
    why = "the episodes in flight, as tests.e2e_tests.embodied.robot:Robot-v0 is nondeterministic"
    assert summary["checkpoint_failures"] == 0
    assert len(summary["not_saved"]) == 1 and summary["not_saved"][0].startswith(why)
    assert capsys.readouterr().err.count(f"checkpoints hold all but {why}") == 1
    before = first.actor.weights().wait()[0]
    longer = ["runner.max_epochs=3", "runner.resume_force=true"]
    resumed = runners.runner(tmp_path, RECIPE, [*overrides, *longer])
    said = capsys.readouterr().out
    assert "resuming after step 2" in said and f"not restored: {why}" in said
    assert "new episodes begin" in said
    assert "this run is not exactly the one that was interrupted" in said
    after = resumed.actor.weights().wait()[0]
    assert all(torch.equal(after[name], before[name]) for name in before)
    summary = resumed.run()
    assert summary["not_restored"][0].startswith(why) and summary["status"] == "finished"
    assert [line["step"] for line in metrics(resumed.folder)] == [1, 2, 3]
