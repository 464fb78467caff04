"""A newcomer's walk: the commands of the README in an empty folder, twice, and with mistakes.

The short walks use what is installed here; the one in a clone is walked once. Those that install
everything, and train to the end, run with `RLINF_ALL_TESTS=1`, and so does the clone's second.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from rlinf.utils.runs import experiment_runs, status_of
from tests.long_tests import ALL_TESTS, long_test

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = "metaworld_ppo_mlp"
SHORT = [
    "env.train.total_num_envs=4",
    "env.train.max_steps_per_rollout_epoch=20",
    "env.train.max_episode_steps=20",
    "env.eval.max_episode_steps=20",
    "actor.global_batch_size=40",
    "runner.eval_episodes=4",
    "runner.max_steps=2",
    "env.eval.video_cfg.save_video=false",
]
"""Makes a training of the tour as short as it can be."""


def tour() -> list[list[str]]:
    """Returns the commands of the README's tour, as words."""
    text = (ROOT / "README.md").read_text().split("## A short tour", 1)[1]
    block = re.search(r"```bash\n(.*?)```", text, re.DOTALL).group(1)
    lines = [line.partition("#")[0].split() for line in block.splitlines()]
    return [words for words in lines if words and words[0] == "rlinf"]


def wheel_of(source: Path, target: Path, *options: str) -> Path:
    """Builds the wheel of a source tree."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", *options, "-w", target, source], check=True)
    (wheel,) = target.glob("rlinf-*.whl")
    return wheel


def clone_to(folder: Path) -> Path:
    """Clones this repository as it is now, with what is not committed."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "--modified", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


class Walk:
    """Somebody who types commands in a folder.

    Args:
        folder: where.
        env: variables of the shell.
        command: what `rlinf` stands for.
    """

    def __init__(self, folder: Path, env: dict[str, str], command: list[str]):
        self.folder = folder
        self.env = env
        self.command = command

    def type(self, *words: str, code: int | None = 0) -> str:
        """Runs a command; returns what it printed."""
        process = self.start(*words)
        output, _ = process.communicate()
        assert code is None or process.returncode == code, f"{words}\n{output}"
        return output

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command."""
        return subprocess.Popen(
            [*self.command, *words],
            cwd=self.folder,
            env=self.env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def runs(self) -> list[Path]:
        """Returns the runs so far."""
        return experiment_runs(self.folder / "logs" / EXPERIMENT)


def from_wheel(folder: Path, env: dict[str, str]) -> Walk:
    source, site = clone_to(folder / "source"), folder / "site"
    wheel = wheel_of(source, folder / "dist", "--no-index", "--no-build-isolation")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    shutil.rmtree(source)
    (folder / "empty").mkdir()
    command = [sys.executable, "-m", "rlinf.cli"]
    return Walk(folder / "empty", {**env, "PYTHONPATH": str(site)}, command)


def from_clone(folder: Path, env: dict[str, str]) -> Walk:
    clone = clone_to(folder / "clone")
    return Walk(clone, {**env, "PYTHONPATH": str(clone)}, [sys.executable, "-m", "rlinf.cli"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("begin", "rounds"), [(from_wheel, 2), (from_clone, 2 if ALL_TESTS else 1)]
)
def test_the_tour_twice_and_with_mistakes(
    begin: Callable[[Path, dict[str, str]], Walk], rounds: int, ray_address, tmp_path
):
    walk = begin(tmp_path, {**os.environ, "RAY_ADDRESS": ray_address})
    before = {path.name for path in walk.folder.iterdir()}
    commands = tour()
    assert [words[1] for words in commands if words[1] == "train"], "the tour trains nothing"
    for round_number in range(1, rounds + 1):
        for words in commands:
            trains = words[1] == "train" and "--list" not in words
            if words[1] == "new" and round_number == 2:
                # The folder of the first round stays as it is.
                assert "my_robot" in walk.type(*words[1:], code=2)
                continue
            # A machine that lacks a package only for GPUs is no mistake of the tour.
            code = None if words[1] == "doctor" else 0
            said = walk.type(*words[1:], *(SHORT if trains else []), code=code)
            assert "Traceback (most recent call last)" not in said, said
        assert len(walk.runs()) == round_number
    runs = walk.runs()
    assert [status_of(run) for run in runs] == ["finished"] * rounds
    for run in runs:
        assert len((run / "metrics.jsonl").read_text().splitlines()) >= 2
        assert json.loads((run / "summary.json").read_text())["evaluation"]
    # Each has its own report and evaluation.
    assert all((run / "report.html").is_file() for run in runs)
    assert all(len(list(run.glob("eval*"))) >= 1 for run in runs)
    assert (walk.folder / "logs" / EXPERIMENT / "latest").resolve() == runs[-1].resolve()
    if begin is from_wheel:
        mistakes(walk, runs[0])
        assert len(walk.runs()) == 3
    made = {path.name for path in walk.folder.iterdir()} - before
    assert made <= {"logs", "my_robot", "__pycache__"}, made


def mistakes(walk: Walk, first: Path) -> None:
    """What a newcomer does wrong, and what is left of it."""
    assert "did you mean 'train'" in walk.type("tarin", EXPERIMENT, code=2)
    assert "metaworld_ppo_mlp" in walk.type("train", "metaworld_ppo_mpl", code=1)
    assert "did you mean 'max_steps'" in walk.type("train", EXPERIMENT, "runner.max_step=3", code=1)
    kept = (first / "summary.json").read_bytes(), (first / "metrics.jsonl").read_bytes()
    again = ["train", EXPERIMENT, *SHORT, "env.train.task=reach-v3", f"runner.run_dir={first}"]
    assert str(first.name) in walk.type(*again, code=1)
    differs = [*again, "runner.resume_dir=auto", "algorithm.gamma=0.5"]
    assert "gamma" in walk.type(*differs, code=1)
    walk.type("train", EXPERIMENT, *SHORT, "runner.logger.log_path=/proc/nowhere", code=1)
    assert kept == ((first / "summary.json").read_bytes(), (first / "metrics.jsonl").read_bytes())
    assert status_of(first) == "finished"
    process = walk.start("train", EXPERIMENT, *SHORT, "runner.max_steps=30", "runner.max_epochs=30")
    said = []
    for line in process.stdout:
        said.append(line)
        if "step 1/" in line or "step 2/" in line:
            process.send_signal(signal.SIGINT)
            break
    said.append(process.stdout.read())
    assert process.wait() == 130, "".join(said)
    assert "go on with" in said[-1] and "Traceback" not in said[-1]
    stopped = walk.runs()[-1]
    assert status_of(stopped) == "stopped"
    assert "stopped" in walk.type("runs")
    # What it says to go on with does.
    walk.type(*shlex.split(said[-1].partition("go on with")[2].strip().splitlines()[0])[1:])
    assert status_of(stopped) == "finished"
    assert json.loads((stopped / "summary.json").read_text())["global_step"] == 30


@long_test
@pytest.mark.timeout(3600)
def test_a_wheel_that_is_installed_with_all_it_needs_trains_in_an_empty_folder(tmp_path):
    wheel = wheel_of(clone_to(tmp_path / "source"), tmp_path / "dist")
    shutil.rmtree(tmp_path / "source")
    venv.create(tmp_path / "venv", with_pip=True)
    bin_folder = tmp_path / "venv" / "bin"
    subprocess.run(
        [bin_folder / "pip", "--quiet", "install", f"{wheel}[embodied]"], check=True, cwd=tmp_path
    )
    (tmp_path / "empty").mkdir()
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    walk = Walk(tmp_path / "empty", clean, [str(bin_folder / "rlinf")])
    for words in tour():
        walk.type(*words[1:], code=None if words[1] == "doctor" else 0)
    (run,) = walk.runs()
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"


@long_test
@pytest.mark.timeout(3600)
def test_a_clone_trains_by_make(tmp_path):
    clone = clone_to(tmp_path / "clone")
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    for _ in range(2):
        subprocess.run(["make", "train"], cwd=clone, env=clean, check=True)
    found = experiment_runs(clone / "logs" / EXPERIMENT)
    scores = [json.loads((run / "summary.json").read_text())["evaluation"] for run in found]
    assert len(scores) == 2
    assert min(score["eval/success_once"] for score in scores) >= 0.9
