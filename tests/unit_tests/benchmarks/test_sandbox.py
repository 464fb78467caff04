"""The benchmark of sandboxes: its contestants judge rightly, and its rows say what was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import sandbox
from benchmarks.harness import Board, ContestantFailed, live


class Scripted:
    """A contestant whose runs take 10 ms, the last of ten 100 ms, and tests 10 ms each."""

    def __init__(self, name: str, slowness: float):
        self.name = name
        self._slowness = slowness

    def ask(self, do: str, **arguments: Any) -> Any:
        if do == "judge":
            return 0.01 * self._slowness * len(arguments["tests"]) * arguments["programs"]
        times = [0.01 * self._slowness] * arguments["count"]
        return [*times[1:], 0.1 * self._slowness]


def test_rows() -> None:
    board = Board(["ours", sandbox.SUBPROCESS])
    for contestant in (Scripted("ours", 0.5), Scripted(sandbox.SUBPROCESS, 1.0)):
        sandbox.measure_launch(board, contestant, 10)
        sandbox.measure_judging(board, contestant, 5)
    table = board.render([("ours", sandbox.SUBPROCESS)])
    assert "| first run of a program (ms) | 5.0 [5.0–5.0] | 10.0 [10.0–10.0] | 0.50 |" in table
    assert "| next run of the same: 90th percentile (ms) | 9.5 | 19.0 | 0.50 |" in table
    assert "≤ 1 x subprocess: 0.50 x met" in table
    assert "| programs judged by 8 inputs, 1 worker (1/s) | 25.00 | 12.50 | 2.00 |" in table
    assert "| programs judged by 8 assertions, 2 workers (1/s) | 50.00 | 25.00 | 2.00 |" in table


@pytest.mark.parametrize(
    "entry",
    [entry for entry in sandbox.entries() if entry.name != sandbox.UNCONFINED],
    ids=lambda entry: entry.name,
)
def test_contestants_run_programs_and_notice_wrong_ones(entry, tmp_path: Path) -> None:
    wrong = sandbox.CODE.replace("2 * x", "x")
    with live([entry], tmp_path) as [contestant]:
        contestant.ask("prepare", **sandbox.LIMITS)
        asked = {"given": "3", "expected": "6\n", "count": 2}
        for do in ("first", "again"):
            assert len(contestant.ask(do, code=sandbox.CODE, **asked)) == 2
        with pytest.raises(ContestantFailed):
            contestant.ask("first", code=wrong, **asked)
        for tests in sandbox.TESTS.values():
            asked = {"tests": tests[1:2], "programs": 1, "workers": 2}
            assert contestant.ask("judge", code=sandbox.CODE, **asked) > 0
            with pytest.raises(ContestantFailed):
                contestant.ask("judge", code=wrong, **asked)
