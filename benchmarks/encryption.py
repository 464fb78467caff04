"""What encryption costs: large messages over TCP between two processes, with TLS and without.

Usage, from the root of the repository, on an otherwise idle machine:

    python -m benchmarks.encryption

Both processes are on this machine and connected by loopback, so that processor and memory are what
limits. Contestants take turns. In the rows of a busy receiver a second thread of the receiving
process runs Python code all the time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import NamedTuple

from benchmarks.harness import ROOT, busy_share, describe_machine
from rlinf.scheduler.net.certificate import RunTls
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Listener, connect

BULK = {"64 MB": (64 << 20, 12), "1 GB": (1 << 30, 3)}
"""Size, and how many of them in a sample; the first of each sample is not counted."""
SECRET = b"benchmark".ljust(32)
CONTESTANTS = {
    "plain": (False, False),
    "encrypted": (True, False),
    "plain, busy receiver": (False, True),
    "encrypted, busy receiver": (True, True),
}
"""Whether it is encrypted, and whether the receiver has something else to do."""
SMALL = 2000
"""Small messages there and back, in a sample."""


def tls(encrypted: bool) -> RunTls | None:
    """Return what an encrypted run has."""
    return RunTls(SECRET) if encrypted else None


def take(encrypted: bool, busy: bool) -> None:
    """Answer every message with the processor time used so far, until standard input ends."""

    def answer(connection: Connection, meta: bytes, buffers: list[memoryview]) -> None:
        connection.send(repr(time.process_time()).encode())

    listener = Listener(
        IOLoop(), ("tcp", "127.0.0.1", 0), SECRET, answer, lambda *_: None, tls=tls(encrypted)
    )
    print(listener.address[2], flush=True)
    if busy:
        threading.Thread(target=_spin, daemon=True).start()
    sys.stdin.read()


def _spin() -> None:
    while True:
        pass


class Sample(NamedTuple):
    """What messages took.

    Attributes:
        seconds: of each until it was answered.
        processor: seconds of processor time of each, of both processes.
    """

    seconds: list[float]
    processor: list[float]


class Pair:
    """A connection to a process that takes messages.

    Args:
        encrypted: whether it is encrypted.
        busy: whether that process has something else to do.
    """

    def __init__(self, encrypted: bool, busy: bool):
        command = [sys.executable, "-m", "benchmarks.encryption", "--take"]
        command += ["--encrypted"] * encrypted + ["--busy"] * busy
        self._taker = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._taker.stdout is not None
        port = int(self._taker.stdout.readline())
        self._answered = threading.Semaphore(0)
        self._theirs = 0.0
        self._connection = connect(
            IOLoop(),
            ("tcp", "127.0.0.1", port),
            SECRET,
            {},
            self._on_answer,
            lambda *_: None,
            tls=tls(encrypted),
        )

    def _on_answer(self, connection: Connection, meta: bytes, buffers: list[memoryview]) -> None:
        self._theirs = float(meta)
        self._answered.release()

    def sample(self, data: bytes | memoryview, count: int) -> Sample:
        """Send messages, each when the one before is answered; the first is not counted."""
        seconds, processor = [], []
        for _ in range(count):
            begin, used = time.perf_counter(), time.process_time() + self._theirs
            # As tensors are sent: a plain connection does not prove them.
            self._connection.send(b"", [data], covered=0)
            self._answered.acquire()
            seconds.append(time.perf_counter() - begin)
            processor.append(time.process_time() + self._theirs - used)
        return Sample(seconds[1:], processor[1:])

    def close(self) -> None:
        """End the other process."""
        self._connection.close()
        self._taker.communicate()


def measure(rounds: int) -> None:
    """Print rates and times of all contestants, which take turns."""
    largest = os.urandom(1 << 20) * 1024
    rates: dict[tuple[str, str], list[float]] = {}
    costs: dict[str, list[float]] = {}
    delays: dict[str, list[float]] = {}
    for turn in range(rounds):
        names = list(CONTESTANTS)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            busy = CONTESTANTS[name][1]
            pair = Pair(*CONTESTANTS[name])
            for label, (size, count) in BULK.items():
                if busy and size == len(largest):
                    continue
                sample = pair.sample(memoryview(largest)[:size], count)
                rates.setdefault((name, label), []).extend(size / 1e9 / s for s in sample.seconds)
                if not busy:
                    costs.setdefault(name, []).extend(1e9 * s / size for s in sample.processor)
            if not busy:
                delays.setdefault(name, []).extend(
                    1e6 * s for s in pair.sample(b"x" * 1000, SMALL).seconds
                )
            pair.close()
            print(f"round {turn + 1} of {rounds}: {name}", flush=True)
    columns = [f"{label} (GB/s)" for label in BULK]
    columns += ["processor seconds per GB, both ends", "1 kB there and back (µs)"]
    print(f"\n| median (spread) | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for name in CONTESTANTS:
        cells = [_cell(rates.get((name, label))) for label in BULK]
        delay = f"{statistics.median(delays[name]):.0f}" if name in delays else ""
        print(f"| {name} | {' | '.join(cells)} | {_cell(costs.get(name))} | {delay} |")


def _cell(values: list[float] | None) -> str:
    if not values:
        return ""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main() -> None:
    """Measure and print a table, or be the receiving process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    for flag in ("--take", "--encrypted", "--busy"):
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.take:
        take(args.encrypted, args.busy)
        return
    print(describe_machine())
    print(f"processors busy before: {busy_share():.0%}, {os.cpu_count()} cores", flush=True)
    measure(args.rounds)


if __name__ == "__main__":
    main()
