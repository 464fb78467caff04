"""Start, launch, call and memory of worker groups, beside plain Ray and the public package.

Usage, from the root of the repository, on an otherwise idle machine:

    python -m benchmarks.scheduler --peer PYTHON_OF_THAT_ENVIRONMENT

Clusters start one at a time, contestants taking turns. Calls are measured between contestants that
are all up, in turns of 100 calls, so that whatever else the machine does hits them alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from benchmarks.harness import (
    Aim,
    Board,
    Contestant,
    Entry,
    arguments,
    chosen,
    live,
    ours,
    public_package,
    rotated,
    run,
)

RAY = "raw Ray"
RAY_DASHBOARD = "raw Ray + dashboard"
CPU_SLOTS = 8
"""Slots of a machine without accelerators, by default; more workers than that share them."""

REST = 4.0
"""Seconds after which a fresh Ray has started the processes that it keeps ready."""


def entries(peer: str | None) -> list[Entry]:
    """Return the contestants, the public package among them if its interpreter is given."""
    known = [
        Entry(RAY, "scheduler_ray.py", options={"start": {"dashboard": False}}),
        Entry(RAY_DASHBOARD, "scheduler_ray.py", options={"start": {"dashboard": True}}),
        ours("scheduler_rlinf.py", launch={"slots": CPU_SLOTS}),
    ]
    if peer:
        known.append(public_package("scheduler_rlinf.py", peer, launch={"slots": 0}))
    return known


def measure_launch(
    board: Board, contestant: Contestant, workers: int, rest: float, settle: float
) -> None:
    """First launch in a fresh cluster; for two workers also the start and the memory.

    Args:
        board: takes the samples.
        contestant: who is measured.
        workers: size of the group.
        rest: seconds between start and launch. Ray starts a process per core ahead of time, which
            is still under way if there is none.
        settle: seconds between launch and the look at the memory.
    """
    name, aim = contestant.name, [Aim(1.3, RAY)] if workers == 2 else []
    started = contestant.ask("start")
    time.sleep(rest)
    launched = contestant.ask("launch", workers=workers)
    when = f", {rest:g} s after the start" if rest else ""
    row = board.row(f"launch of {workers} workers{when}", "s", 3, aim)
    row.add(name, launched["seconds"])
    if workers == 2 and not rest:
        both = started["start"] + launched["seconds"]
        board.row("import", "s", 2).add(name, started["import"])
        board.row("cluster start", "s", 2).add(name, started["start"])
        board.row("cluster start and launch of 2 workers", "s", 2).add(name, both)
        time.sleep(settle)
        measure_memory(board, contestant, launched["pids"])


def measure_memory(board: Board, contestant: Contestant, workers: list[int]) -> None:
    """Memory of the processes that a user did not ask for, and of the others."""
    name, aim, memory = contestant.name, [Aim(1.2, RAY)], contestant.memory(workers)
    both = memory["others"] + memory["driver"]
    board.row("memory of all but workers and driver", "MiB", 0, aim).add(name, memory["others"])
    board.row("memory of all but workers", "MiB", 0, aim).add(name, both)
    board.row("memory of the driver", "MiB").add(name, memory["driver"])
    board.row("memory of 2 workers", "MiB").add(name, memory["workers"])


def measure_calls(
    board: Board, running: list[Contestant], workers: int, rounds: int, calls: int
) -> None:
    """No-op calls on groups that are up side by side."""
    plural = "workers" if workers > 1 else "worker"
    row = board.row(f"no-op call, {workers} {plural}", "µs", 0, [Aim(1.15, RAY)])
    ready = []
    for contestant in running:
        with board.failing():
            contestant.ask("start")
            contestant.ask("launch", workers=workers)
            contestant.ask("noop", calls=calls)
            ready.append(contestant)
    for turn in range(rounds):
        for contestant in rotated(ready, turn):
            with board.failing():
                times = contestant.ask("noop", calls=calls)
                row.add(contestant.name, statistics.median(times) * 1e6)


def main() -> int:
    parser = arguments(__doc__)
    args = parser.parse_args()
    try:
        known = chosen(entries(args.peer), args.only)
    except ValueError as error:
        parser.error(str(error))
    repeats = 1 if args.quick else args.repeats
    sets, rounds, calls = (1, 3, 100) if args.quick else (2, 2 * repeats, 100)
    settle = 1.0 if args.quick else 4.0
    board = Board([entry.name for entry in known])

    def measure(folder: Path) -> None:
        for turn in range(repeats):
            for workers, rest in ((2, 0.0), (2, REST), (8, 0.0)):
                for entry in rotated(known, turn):
                    _say(f"launch of {workers}, round {turn + 1} of {repeats}: {entry.name}")
                    with live([entry], folder) as running, board.failing():
                        measure_launch(board, running[0], workers, rest, settle)
        # A dashboard samples processes all the time, which would disturb the calls of the others.
        callers = [entry for entry in known if entry.name != RAY_DASHBOARD]
        for workers in (1, 4, 16):
            for turn in range(sets):
                _say(f"calls on {workers} workers, set {turn + 1} of {sets}")
                with live(callers, folder) as running:
                    measure_calls(board, running, workers, rounds, calls)

    names = [entry.name for entry in known]
    peers = [name for name in names if name.startswith("rlinf ")]
    ratios = [("ours", RAY), *((peer, RAY) for peer in peers)]
    notes = [
        f"Launch ends when every worker has answered a call. Memory is PSS, {settle:g} s after the "
        f"launch of 2 workers. A sample of no-op calls is the median of {calls} calls.",
    ]
    return run(board, measure, ratios, notes, args.json)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
