"""What a sandbox costs: runs of small programs, beside processes that have limits and nothing else.

Usage, from the root of the repository, on an otherwise idle machine:

    python -m benchmarks.sandbox

Contestants take turns within each measure. The first run of a program starts its sandbox, runs it
and ends it; the next run of the same program has the sandbox as its parent already, which the plain
contestants do not have: each of their runs is a process from its beginning. To judge a program is
to run all of its tests, each in a process of its own. Limits of the kernel are the same for all.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    ROOT,
    Aim,
    Board,
    Contestant,
    Entry,
    arguments,
    chosen,
    live,
    ours,
    rotated,
    run,
)

UNCONFINED, SUBPROCESS, SPAWN = "ours, no layers", "subprocess", "spawn"
LIMITS = {"seconds": 30.0, "memory_mb": 512}
CODE = """
def solve(x):
    return 2 * x
if __name__ == "__main__":
    import sys
    text = sys.stdin.read()
    if text:
        print(solve(int(text)))
"""
TESTS = {
    "inputs": [[str(x), f"{2 * x}\n"] for x in range(8)],
    "assertions": [[f"assert solve({x}) == {2 * x}"] for x in range(8)],
}
"""By what a program is judged: input and output of each test, or the test itself."""
WORKERS = (1, 2)


def entries() -> list[Entry]:
    """Return the contestants."""
    layers, none = ({"prepare": {"layers": on}} for on in (True, False))
    spawns, starts = ({"prepare": {"spawns": on}} for on in (True, False))
    path = {"PYTHONPATH": str(ROOT)}
    return [
        ours("sandbox_rlinf.py", **layers),
        Entry(UNCONFINED, "sandbox_rlinf.py", env=path, options=none),
        Entry(SUBPROCESS, "sandbox_plain.py", options=starts),
        Entry(SPAWN, "sandbox_plain.py", options=spawns),
    ]


def measure_launch(board: Board, contestant: Contestant, count: int) -> None:
    """Take the latency of first and of further runs, and the slowest tenth of them."""
    for do, label in (("first", "first run of a program"), ("again", "next run of the same")):
        aims = [Aim(1.0, SUBPROCESS)] if do == "again" else []
        times = contestant.ask(do, code=CODE, given="3", expected="6\n", count=count)
        row = board.row(label, "ms", 1, aims)
        for seconds in times:
            row.add(contestant.name, seconds * 1e3)
        slow = board.row(f"{label}: 90th percentile", "ms", 1)
        slow.add(contestant.name, percentile(times, 90) * 1e3)


def measure_judging(board: Board, contestant: Contestant, programs: int) -> None:
    """Take how many programs are judged in a second, by one worker and by two at the same time."""
    for kind, tests in TESTS.items():
        for workers in WORKERS:
            aims = [Aim(1.0, SUBPROCESS, at_least=True)] if kind == "inputs" else []
            many = "s" if workers > 1 else ""
            label = f"programs judged by {len(tests)} {kind}, {workers} worker{many}"
            asked: dict[str, Any] = {"tests": tests, "programs": programs, "workers": workers}
            seconds = contestant.ask("judge", code=CODE, **asked)
            row = board.row(label, "1/s", 2, aims)
            row.add(contestant.name, programs * workers / seconds)


def percentile(values: list[float], percent: int) -> float:
    """Return the value below which a share of the values is."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> int:
    """Measure and print the table."""
    parser = arguments(__doc__)
    args = parser.parse_args()
    try:
        known = chosen(entries(), args.only)
    except ValueError as error:
        parser.error(str(error))
    names = [entry.name for entry in known]
    rounds, launches, programs = (1, 3, 1) if args.quick else (args.repeats, 10, 3)
    board = Board(names)
    notes = [
        f"{rounds} rounds of {launches} runs, and of {programs} programs for each worker. A 90th "
        "percentile is that of the runs of a round."
    ]

    def measure(folder: Path) -> None:
        with live(known, folder) as running:
            ready = []
            for contestant in running:
                with board.failing():
                    notes.append(f"{contestant.name}: {contestant.ask('prepare', **LIMITS)}.")
                    contestant.ask("first", code=CODE, given="3", expected="6\n", count=1)
                    ready.append(contestant)
            for turn in range(rounds):
                print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
                for contestant in rotated(ready, turn):
                    with board.failing():
                        measure_launch(board, contestant, launches)
                for contestant in rotated(ready, turn):
                    with board.failing():
                        measure_judging(board, contestant, programs)

    ratios = [("ours", SUBPROCESS), ("ours", SPAWN), ("ours", UNCONFINED)]
    return run(board, measure, ratios, notes, args.json)


if __name__ == "__main__":
    sys.exit(main())
