"""What a reader of a benchmark's table relies on: contestants are heard, compared and ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks import harness
from benchmarks.harness import Aim, Board, Contestant, ContestantFailed, Entry, Row

FAKE = """
import os, subprocess, sys, time
sys.path.insert(0, {programs!r})
from answer import serve

class Fake:
    def add(self, a, b):
        print("this is not an answer")
        os.system("echo nor is this")
        return a + b

    def environment(self):
        return dict(os.environ), os.getcwd()

    def fail(self):
        raise KeyError("no such thing")

    def sleep(self, seconds):
        time.sleep(seconds)

    def child(self):
        return subprocess.Popen(["sleep", "1000"]).pid

    def leave(self):
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)

    def stop(self):
        pass

serve(Fake())
"""

Start = Callable[..., Contestant]


@pytest.fixture
def fake(tmp_path: Path) -> Entry:
    program = tmp_path / "fake.py"
    program.write_text(FAKE.format(programs=str(harness.PROGRAMS)))
    return Entry("fake", str(program))


def test_a_contestant_answers_whatever_it_prints(fake: Entry, tmp_path: Path) -> None:
    with harness.live([fake], tmp_path) as [contestant]:
        assert contestant.ask("add", a=2, b=3) == 5
        assert contestant.ask("add", a=2, b=4) == 6


def test_a_contestant_does_not_inherit_settings_of_the_shell(
    fake: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    with harness.live([fake], tmp_path) as [contestant]:
        environment, folder = contestant.ask("environment")
    assert "RAY_ADDRESS" not in environment and "PYTHONPATH" not in environment
    assert environment["OMP_NUM_THREADS"] == "1"
    # The public package must not find this repository's by accident.
    assert not Path(folder).is_relative_to(harness.ROOT)


def test_an_error_of_a_contestant_is_told_and_does_not_end_it(fake: Entry, tmp_path: Path) -> None:
    with harness.live([fake], tmp_path) as [contestant]:
        with pytest.raises(ContestantFailed, match=r"fake: fail\(\) failed[^$]*no such thing"):
            contestant.ask("fail")
        assert contestant.ask("add", a=1, b=1) == 2


def test_the_last_words_of_a_contestant_that_ends_are_shown(fake: Entry, tmp_path: Path) -> None:
    with harness.live([fake], tmp_path) as [contestant]:
        with pytest.raises(ContestantFailed, match=r"ended the process\n.*last words"):
            contestant.ask("leave")


def test_a_contestant_that_hangs_is_given_up_and_ended(fake: Entry, tmp_path: Path) -> None:
    with harness.live([fake], tmp_path) as [contestant]:
        child = contestant.ask("child")
        with pytest.raises(ContestantFailed, match=r"sleep\(seconds=1000\) took more than 0.2 s"):
            contestant.ask("sleep", seconds=1000, timeout=0.2)
        begin = time.monotonic()
    # Not after the thousand seconds that it sleeps.
    assert time.monotonic() - begin < 100
    assert not psutil.pid_exists(contestant.pid) and not psutil.pid_exists(child)


def test_nothing_that_a_contestant_started_is_left(fake: Entry, tmp_path: Path) -> None:
    with harness.live([fake], tmp_path) as [contestant]:
        child = contestant.ask("child")
        assert psutil.pid_exists(child)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_memory_is_told_apart(fake: Entry, tmp_path: Path) -> None:
    with harness.live([fake], tmp_path) as [contestant]:
        worker, _ = contestant.ask("child"), contestant.ask("child")
        memory = contestant.memory([worker])
    assert 1 < memory["driver"] < 200
    assert 0 < memory["workers"] < memory["driver"]
    assert 0 < memory["others"] < memory["driver"]


def test_ratios_are_of_samples_of_the_same_round() -> None:
    row = Row("call", "µs", 0)
    for ours, ray in ((20, 10), (60, 30), (12, 6)):
        row.add("ours", ours)
        row.add("raw Ray", ray)
    assert row.median("ours") == 20
    assert row.ratio("ours", "raw Ray") == 2
    assert row.ratio("ours", "nobody") is None


@pytest.mark.parametrize(
    ("aim", "verdict"),
    [
        (Aim(2.5, "raw Ray"), "≤ 2.5 x raw Ray: 2.00 x met"),
        (Aim(1.5, "raw Ray"), "≤ 1.5 x raw Ray: 2.00 x **missed**"),
        (Aim(1.5, "raw Ray", at_least=True), "≥ 1.5 x raw Ray: 2.00 x met"),
        (Aim(50), "≤ 50 ms: 20.0 met"),
        (Aim(10), "≤ 10 ms: 20.0 **missed**"),
        (Aim(1.5, "nobody"), "≤ 1.5 x nobody: -"),
    ],
)
def test_aims(aim: Aim, verdict: str) -> None:
    row = Row("call", "ms", 1, samples={"ours": [20.0], "raw Ray": [10.0]})
    assert aim.verdict(row, "ours") == verdict


def test_the_table() -> None:
    board = Board(["raw Ray", "ours"])
    row = board.row("launch", "s", 1, [Aim(1.3, "raw Ray"), Aim(5, "absent", at_least=True)])
    for index, (ray, ours) in enumerate([(1.0, 1.2), (1.1, 1.2), (1.2, 1.3)]):
        assert board.row("launch", "s") is row, f"round {index}"
        row.add("raw Ray", ray)
        row.add("ours", ours)
    board.row("start", "s").add("raw Ray", 1000)
    table = board.render([("ours", "raw Ray"), ("absent", "raw Ray")])
    assert table.splitlines() == [
        "| measure | raw Ray | ours | ours / raw Ray | aim of ours |",
        "| --- | ---: | ---: | ---: | --- |",
        "| launch (s) | 1.1 [1.1–1.1] | 1.2 [1.2–1.2] | 1.09 | ≤ 1.3 x raw Ray: 1.09 x met |",
        "| start (s) | 1,000 | - | - |  |",
    ]


def test_a_failure_is_noted_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    board = Board(["ours"])
    with board.failing():
        raise ContestantFailed("ours: noop() failed")
    assert board.failures == ["ours: noop() failed"]
    assert "noop() failed" in capsys.readouterr().err


def test_a_run_with_failures_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "busy_share", lambda: 0.5)
    monkeypatch.setattr(harness.signal, "signal", lambda *_: None)
    board = Board(["ours"])

    def measure(folder: Path) -> None:
        board.row("call", "µs").add("ours", 3.0)
        with board.failing():
            raise ContestantFailed("ours: noop() failed")

    file = tmp_path / "samples.json"
    assert harness.run(board, measure, [], ["A note."], file) == 1
    printed = capsys.readouterr().out
    assert "**not idle: these numbers do not count**" in printed
    assert "| call (µs) | 3 |" in printed
    assert "A note." in printed and "FAILED ours: noop() failed" in printed
    assert '"samples": {' in file.read_text()


def test_everybody_goes_first_in_turn() -> None:
    assert [harness.rotated("abc", turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert sorted(harness.rotated("abc", 1)) == ["a", "b", "c"]


def test_unknown_contestants_are_refused() -> None:
    known = [Entry("ours", "x.py"), Entry("raw Ray", "y.py")]
    assert [e.name for e in harness.chosen(known, ["raw Ray"])] == ["raw Ray"]
    with pytest.raises(ValueError, match="--only ray: the contestants are 'ours', 'raw Ray'"):
        harness.chosen(known, ["ray"])


def test_this_repository_is_not_the_public_package() -> None:
    with pytest.raises(ValueError, match="--peer .*(has no rlinf package|is this repository)"):
        harness.public_package("x.py", sys.executable)


@pytest.mark.parametrize("benchmark", ["scheduler", "communication"])
def test_help_tells_the_command(benchmark: str) -> None:
    told = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--help"],
        capture_output=True,
        text=True,
        cwd=harness.ROOT,
        env={**os.environ, "COLUMNS": "100"},
        check=True,
    ).stdout
    assert f"python -m benchmarks.{benchmark} --peer" in told and "--quick" in told
