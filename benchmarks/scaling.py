"""What a rank costs the control plane, in runs of 8 to 4,096 ranks on one machine.

Usage, from the root of the repository:

    python -m benchmarks.scaling

Registry, group calls, rendezvous, broadcast and shutdown are the real ones, over real sockets. The
ranks are light: nine processes play all of them, and pipes take the place of Ray. All costs are per
rank, so what grows with a column grows faster than the run. Aim: a rank of 4,096 costs at most
twice what a rank of 64 does. Afterwards, the throughput of channels with several keepers.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Aim, Board, ContestantFailed, run

SIZES = (8, 64, 512, 4096)
LONG_CALL_SECONDS = 4.0
IDLE_SECONDS = 5.0
_NOOPS = 5
_LIMIT = 1800.0


class Meter:
    """Takes what an operation costs, per rank."""

    def __init__(self, messages: Callable[[], int]):
        self._messages = messages
        self.costs: dict[str, float] = {}

    @contextmanager
    def operation(self, name: str, ranks: int, quiet: Callable[[], None] | None = None) -> Iterator:
        """Measure a block: seconds, CPU of the driver, and messages of the registry.

        Args:
            name: the operation.
            ranks: how many ranks it is for.
            quiet: waits until what the block has caused is over.
        """
        messages, cpu, begin = self._messages(), time.process_time(), time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        if quiet is not None:
            quiet()
        self.costs[f"{name}: seconds"] = seconds / ranks
        self.costs[f"{name}: CPU of the driver"] = (time.process_time() - cpu) / ranks
        self.costs[f"{name}: messages of the registry"] = (self._messages() - messages) / ranks


def measure_run(size: int) -> dict[str, float]:
    """Return what a rank of a run of this size costs, by operation and kind."""
    from benchmarks.simulated_run import GROUP, SimulatedRun, descriptors, memory
    from rlinf.scheduler.worker.handle import wait_all

    simulated = SimulatedRun(size)
    try:
        meter = Meter(simulated.messages)
        costs = meter.costs
        # What others in this process have left open is closed now, and not while this one counts.
        gc.collect()
        before = memory(), descriptors()
        with meter.operation("launch", size):
            simulated.group.infos = simulated.group.start().wait()
        after = memory(), descriptors()
        costs["driver: memory"] = (after[0] - before[0]) / size
        costs["driver: descriptors"] = (after[1] - before[1]) / size
        cpu = time.process_time()
        time.sleep(IDLE_SECONDS)
        costs["idle: CPU of the driver in a second"] = (
            (time.process_time() - cpu) / IDLE_SECONDS / size
        )
        with meter.operation("no-op call", size * _NOOPS):
            for _ in range(_NOOPS):
                simulated.call("noop")
        looks = simulated.backend.looks
        with meter.operation("call whose ranks end one by one", size):
            wait_all(simulated.long_call(LONG_CALL_SECONDS))
        costs["call whose ranks end one by one: looks"] = (simulated.backend.looks - looks) / size
        # The time is that of the call itself.
        del costs["call whose ranks end one by one: seconds"]
        with meter.operation("size of the group and a value", size):
            simulated.call("question")
        with meter.operation("status of all ranks", size):
            answers = simulated.server.inquire("status", None, None, timeout=_LIMIT)
            assert len(answers) == size
        with meter.operation("first message to the next rank", size, simulated.quiet):
            for method in ("listen", "greet", "hear"):
                simulated.call(method)
        for number, name in enumerate(("first broadcast of rank 0", "second broadcast of rank 0")):
            with meter.operation(name, size):
                simulated.call("begin_broadcast", number)
                simulated.call("end_broadcast", number)
        _measure_ends(simulated, meter, GROUP)
        return costs
    finally:
        simulated.close()


def _measure_ends(simulated: Any, meter: Meter, group: str) -> None:
    """One rank dies, then all ranks of a host, then the group is ended."""
    size, costs = simulated.size, meter.costs
    last = f"{group}:{size - 1}"
    telling = simulated.group.call("wait_told", [size - 2], (last,), {})
    time.sleep(0.2)
    messages, begin = simulated.messages(), time.monotonic()
    simulated.hosts[-1].kill()
    costs["death of one rank: seconds until a peer knows"] = telling.wait()[0] - begin
    simulated.quiet()
    costs["death of one rank: messages in all"] = simulated.messages() - messages
    host, before = simulated.hosts[-2], len(simulated.server.deaths())
    with meter.operation("death of a host", len(host.ranks), simulated.quiet):
        host.kill()
        while len(simulated.server.deaths()) < before + len(host.ranks):
            time.sleep(0.001)
    left = size - 1 - len(host.ranks)
    with meter.operation("end of the group", left):
        simulated.shutdown.end([simulated.group])


def _unit(label: str) -> tuple[str, float, int]:
    if "memory" in label:
        return "KiB", 1 / 1024, 0
    if "seconds" in label or "CPU" in label:
        return "µs", 1e6, 0
    return "1", 1.0, 2


def add_costs(board: Board, column: str, costs: dict[str, float], small: str) -> None:
    """Put the costs of a run into their rows.

    Args:
        board: takes them.
        column: its size.
        costs: what was measured.
        small: the size that others are compared with.
    """
    for label, value in costs.items():
        # What costs nothing has no ratio.
        if not value:
            continue
        unit, factor, digits = _unit(label)
        board.row(label, unit, digits, [Aim(2.0, small)]).add(column, value * factor)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="ranks of a run")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each size")
    parser.add_argument("--keepers", type=int, nargs="*", default=[1, 2, 4], help="of a channel")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all samples")
    parser.add_argument("--one", type=int, metavar="RANKS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure_run(args.one)))
        return 0
    names = {size: f"{size:,}" for size in args.sizes}
    small = names.get(64, names[min(args.sizes)])
    large = names[max(args.sizes)]
    board = Board(list(names.values()), ours=large)

    def measure(_: Path) -> None:
        for turn in range(args.repeats):
            for size in args.sizes:
                _say(f"{size} ranks, round {turn + 1} of {args.repeats}")
                with board.failing():
                    add_costs(board, names[size], _in_process(size), small)

    notes = ["Per rank, except for the death of one rank."]
    code = run(board, measure, [(large, small)], notes, args.json)
    if args.keepers:
        from benchmarks.keepers import measure_keepers

        print("\n" + measure_keepers(args.keepers, args.repeats))
    return code


def _in_process(size: int) -> dict[str, float]:
    """Measure a run in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--one", str(size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode:
        raise ContestantFailed(f"a run of {size} ranks failed\n{done.stderr.rstrip()}")
    return json.loads(done.stdout)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
