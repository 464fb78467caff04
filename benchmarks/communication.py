"""Latency and rate of data between workers, beside memcpy, a pipe, Ray and the public package.

Usage, from the root of the repository, on an otherwise idle machine:

    python -m benchmarks.communication --peer peer-env/bin/python

All contestants are up at the same time and take turns within each measure, so that whatever else
the machine does hits them alike. Messages are float32 tensors in CPU memory (bytes for the pipe,
NumPy arrays for Ray). The receiver answers with a tensor of its own, checks what it got and lets go
of it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import (
    Aim,
    Board,
    Contestant,
    Entry,
    Row,
    arguments,
    chosen,
    live,
    ours,
    public_package,
    rotated,
    run,
)

MEMCPY, PIPE, RAY = "memcpy", "pipe", "raw Ray"
SIZES = {"100 B": 100, "1 KB": 2**10, "1 MB": 2**20, "64 MB": 64 * 2**20, "256 MB": 256 * 2**20}
ROUND_TRIPS = {"100 B": 200, "1 KB": 200, "1 MB": 30, "64 MB": 4, "256 MB": 2}
ONE_WAY = {"100 B": 1000, "1 KB": 1000, "1 MB": 100, "64 MB": 8, "256 MB": 4}
SMALL = ("100 B", "1 KB")
LAYOUTS = ((1, 1), (2, 2), (4, 1))
CHANNEL_SECONDS = 1.0
"""About how long a sample of small items takes: fast contestants move more of them."""


def entries(peer: str | None) -> list[Entry]:
    """Return the contestants, the public package among them if its interpreter is given."""
    known = [
        Entry(MEMCPY, "communication_memcpy.py"),
        Entry(PIPE, "communication_pipe.py"),
        Entry(RAY, "communication_ray.py"),
        ours("communication_rlinf.py"),
    ]
    if peer:
        known.append(public_package("communication_rlinf.py", peer))
    return known


class Turns:
    """Takes samples of live contestants in turns; one that fails is left out from then on."""

    def __init__(self, board: Board, running: list[Contestant], rounds: int):
        self._board = board
        self._running = running
        self._rounds = rounds
        self._failed: set[str] = set()

    def once(self, action: Callable[[Contestant], None], but: Sequence[str] = ()) -> None:
        """Let each contestant do something, one after the other."""
        self._turn(self._running, action, but)

    def sample(self, action: Callable[[Contestant], None], but: Sequence[str] = ()) -> None:
        """Let each contestant do something in each round, another one first each time."""
        for turn in range(self._rounds):
            self._turn(rotated(self._running, turn), action, but)

    def _turn(
        self, order: list[Contestant], action: Callable[[Contestant], None], but: Sequence[str]
    ) -> None:
        for contestant in order:
            if contestant.name not in {*but, *self._failed}:
                self._failed.add(contestant.name)
                with self._board.failing():
                    action(contestant)
                    self._failed.discard(contestant.name)


def measure_first_contact(board: Board, turns: Turns) -> None:
    """The first round trip of pairs that have never met."""
    row = board.row("first contact of a pair", "ms", 1, [Aim(50)])

    def contact(contestant: Contestant) -> None:
        for seconds in contestant.ask("first_contacts"):
            row.add(contestant.name, seconds * 1e3)

    turns.once(contact, but=(MEMCPY, PIPE))


def measure_point_to_point(board: Board, turns: Turns, sizes: Sequence[str]) -> None:
    """Half a round trip, and messages in one direction as fast as they are taken."""
    for label in sizes:
        size, large = SIZES[label], label not in (*SMALL, "1 MB")
        aims = [Aim(150)] if label == "1 KB" else []
        latency = board.row(f"send and recv, {label}: half a round trip", "µs", 1, aims)

        def half(contestant: Contestant, row=latency, size=size, label=label) -> None:
            times = contestant.ask("round_trips", size=size, count=ROUND_TRIPS[label])
            row.add(contestant.name, statistics.median(times) / 2 * 1e6)

        turns.once(_unrecorded("round_trips", size=size, count=2))
        turns.sample(half)

        aims = [Aim(0.7, MEMCPY, at_least=True)] if large else []
        unit, digits = ("1/s", 0) if label in SMALL else ("GB/s", 2)
        rate = board.row(f"send and recv, {label}: one way", unit, digits, aims)

        def flow(contestant: Contestant, row=rate, size=size, label=label) -> None:
            seconds = contestant.ask("one_way", size=size, count=ONE_WAY[label])
            row.add(contestant.name, _rate(ONE_WAY[label], size, seconds, label))

        turns.once(_unrecorded("one_way", size=size, count=ONE_WAY[label]))
        # The copy is the measure of large messages only.
        turns.sample(flow, but=(MEMCPY,) if label in SMALL else ())


def measure_channel(board: Board, turns: Turns, sizes: Sequence[str], peer: str | None) -> None:
    """Items through one channel: small ones in several layouts, large ones from one to one."""
    for label in sizes:
        for producers, consumers in LAYOUTS if label in SMALL else LAYOUTS[:1]:
            aims: list[Aim] = []
            if label == "100 B":
                aims = [Aim(15, RAY, at_least=True)]
                aims += [Aim(50, peer, at_least=True)] if peer else []
            elif label in ("64 MB", "256 MB"):
                aims = [Aim(0.7, MEMCPY, at_least=True)]
            unit, digits = ("1/s", 0) if label in SMALL else ("GB/s", 2)
            row = board.row(f"channel, {label}, {producers} to {consumers}", unit, digits, aims)
            flow = _Flow(row, label, producers, consumers)
            turns.once(flow.warm_up, but=(PIPE, MEMCPY))
            turns.sample(flow.sample, but=(PIPE, MEMCPY) if label in SMALL else (PIPE,))


class _Flow:
    """Items of one size through a channel in one layout."""

    def __init__(self, row: Row, label: str, producers: int, consumers: int):
        self._row = row
        self._label = label
        self._layout = {"producers": producers, "consumers": consumers, "size": SIZES[label]}
        # A memcpy has no warm-up that would tell.
        self._counts = {MEMCPY: ONE_WAY[label]}

    def warm_up(self, contestant: Contestant) -> None:
        """Move a few items, to learn how many make a sample of the right length."""
        count = 40 if self._label in SMALL else ONE_WAY[self._label]
        contestant.ask("channel", count=count, **self._layout)
        seconds = contestant.ask("channel", count=count, **self._layout)
        if self._label in SMALL:
            count = max(40, min(40_000, int(count / seconds * CHANNEL_SECONDS)))
        self._counts[contestant.name] = count - count % 4

    def sample(self, contestant: Contestant) -> None:
        """Record the rate of a contestant."""
        count = self._counts[contestant.name]
        if contestant.name == MEMCPY:
            seconds = contestant.ask("one_way", size=self._layout["size"], count=count)
        else:
            seconds = contestant.ask("channel", count=count, **self._layout)
        rate = _rate(count, self._layout["size"], seconds, self._label)
        self._row.add(contestant.name, rate)


def _unrecorded(do: str, **arguments: int) -> Callable[[Contestant], None]:
    def ask(contestant: Contestant) -> None:
        contestant.ask(do, **arguments)

    return ask


def _rate(count: int, size: int, seconds: float, label: str) -> float:
    """Return the messages per second for small ones, gigabytes (1e9) per second for others."""
    return count / seconds if label in SMALL else count * size / seconds / 1e9


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), metavar="SIZE")
    args = parser.parse_args()
    try:
        known = chosen(entries(args.peer), args.only)
    except ValueError as error:
        parser.error(str(error))
    names = [entry.name for entry in known]
    peer = next((name for name in names if name.startswith("rlinf ")), None)
    sets, rounds = (1, 1) if args.quick else (2, args.repeats)
    board = Board(names)

    def measure(folder: Path) -> None:
        for turn in range(sets):
            with live(known, folder) as running:
                turns = Turns(board, running, rounds)
                _say(f"set {turn + 1} of {sets}: starting {', '.join(names)}")
                turns.once(_unrecorded("prepare"))
                measure_first_contact(board, turns)
                _say("point to point")
                measure_point_to_point(board, turns, args.sizes)
                _say("channel")
                measure_channel(board, turns, args.sizes, peer)

    ratios = [("ours", MEMCPY), ("ours", RAY), *([("ours", peer)] if peer else [])]
    notes = [
        f"{sets} x {rounds} rounds; memcpy: `numpy.copyto` between touched buffers of one process; "
        "1 MB = 2^20 bytes, 1 GB/s = 1e9 bytes per second. Raw Ray's channel is `ray.util.queue`. "
        "A channel's rate counts from the first put to the last get."
    ]
    return run(board, measure, ratios, notes, args.json)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
