"""The benchmarks themselves, on contestants that answer with fixed times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import communication, harness, scheduler
from benchmarks.harness import Board, ContestantFailed


class Scripted:
    """A contestant with an answer to everything."""

    def __init__(self, name: str, slowness: float, fails_at: str | None = None):
        self.name = name
        self.asked: list[str] = []
        self._slowness = slowness
        self._fails_at = fails_at

    def ask(self, do: str, **arguments: Any) -> Any:
        self.asked.append(do)
        if do == self._fails_at:
            raise ContestantFailed(f"{self.name}: {do}")
        count = arguments.get("calls") or arguments.get("count") or 1
        return {
            "start": {"import": 0.5, "start": 4.0},
            "launch": {"seconds": 0.3 * self._slowness, "pids": [1, 2]},
            "noop": [1e-3 * self._slowness] * count,
            "first_contacts": [0.01 * self._slowness] * 4,
            "round_trips": [2e-4 * self._slowness] * count,
            "one_way": 1e-3 * self._slowness * count,
            "channel": 1e-3 * self._slowness * count,
        }.get(do)

    def memory(self, workers: list[int]) -> dict[str, float]:
        return {"driver": 70.0, "workers": 100.0, "others": 300 * self._slowness}


def test_scheduler_rows() -> None:
    board = Board([scheduler.RAY, "ours"])
    for contestant in (Scripted(scheduler.RAY, 1.0), Scripted("ours", 1.1)):
        for workers, rest in ((2, 0.0), (8, 0.01)):
            scheduler.measure_launch(board, contestant, workers, rest, settle=0.0)
    running = [Scripted(scheduler.RAY, 1.0), Scripted("ours", 1.5)]
    scheduler.measure_calls(board, running, workers=4, rounds=3, calls=10)
    table = board.render([("ours", scheduler.RAY)])
    assert (
        "| launch of 2 workers (s) | 0.300 | 0.330 | 1.10 | ≤ 1.3 x raw Ray: 1.10 x met |" in table
    )
    assert "| launch of 8 workers, 0.01 s after the start (s) | 0.300 | 0.330 | 1.10 |  |" in table
    assert "| memory of all but workers (MiB) | 370 | 400 | 1.08 | ≤ 1.2" in table
    assert "| no-op call, 4 workers (µs) | 1,000 [1,000–1,000] | 1,500" in table
    assert "≤ 1.15 x raw Ray: 1.50 x **missed**" in table


def test_a_scheduler_contestant_that_fails_does_not_stop_the_others() -> None:
    board = Board([scheduler.RAY, "ours"])
    running = [Scripted(scheduler.RAY, 1.0), Scripted("ours", 1.0, fails_at="launch")]
    scheduler.measure_calls(board, running, workers=1, rounds=2, calls=10)
    assert board.failures == ["ours: launch"]
    assert "| 1,000 | - | - |" in board.render([("ours", scheduler.RAY)])


def test_communication_rows() -> None:
    peer = "rlinf 0.3.0"
    names = {communication.MEMCPY: 0.01, communication.PIPE: 0.1, communication.RAY: 1.0}
    names |= {"ours": 0.012, peer: 2.0}
    board = Board(list(names))
    turns = communication.Turns(board, [Scripted(n, s) for n, s in names.items()], rounds=2)
    communication.measure_first_contact(board, turns)
    communication.measure_point_to_point(board, turns, ["1 KB", "64 MB"])
    communication.measure_channel(board, turns, ["100 B", "64 MB"], peer)
    assert not board.failures
    table = board.render([("ours", communication.RAY)])
    assert "≤ 150 µs: 1.2 met" in table
    assert "≤ 50 ms: 0.1 met" in table
    assert "| channel, 100 B, 4 to 1 (1/s) | - | - | 1,000 | 83,333 | 500 | 83.33 |" in table
    assert "≥ 15 x raw Ray: 83.33 x met; ≥ 50 x rlinf 0.3.0: 166.67 x met" in table
    assert table.count("≥ 0.7 x memcpy: 0.83 x met") == 2


def test_a_communication_contestant_that_fails_is_left_out_from_then_on() -> None:
    board = Board([communication.RAY, "ours"])
    failing = Scripted("ours", 1.0, fails_at="round_trips")
    turns = communication.Turns(board, [Scripted(communication.RAY, 1.0), failing], rounds=3)
    communication.measure_point_to_point(board, turns, ["1 KB", "64 MB"])
    assert board.failures == ["ours: round_trips"]
    assert failing.asked == ["round_trips"]


@pytest.mark.parametrize("benchmark", [scheduler, communication])
def test_every_contestant_has_a_program(benchmark: Any) -> None:
    for entry in benchmark.entries(peer=None):
        assert (harness.PROGRAMS / entry.program).is_file()


def test_programs_stand_alone() -> None:
    """A contestant's interpreter may know nothing of this repository."""
    for program in Path(harness.PROGRAMS).glob("*.py"):
        assert "import benchmarks" not in program.read_text()
        assert "from benchmarks" not in program.read_text()
