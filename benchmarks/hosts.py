"""Data between hosts: rate of large messages; broadcasts and weights over links of a known speed.

Usage, from the root of the repository, on an otherwise idle machine that can make hosts
(`rlinf.testbed`), with iperf3 installed:

    python -m benchmarks.hosts

Hosts are network namespaces of this machine, so that large messages show what processor and memory
allow. Bare sockets send from memory and receive into memory that is there; what they reach is the
measure. For broadcasts and weights links are slowed to 1 Gbit/s, and their counters tell how much
each host has received.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.harness import PROGRAMS, ROOT, busy_share, describe_machine
from rlinf.testbed import Host, HostBed
from rlinf.testbed.ray_nodes import RayNodes

BULK = {"64 MB": (64 << 20, 8), "1 GB": (1 << 30, 4)}
"""Size, and how many of them in a sample; the first of each sample is not counted."""
SPREAD = 256 << 20
RECEIVERS = (1, 3, 7)
WEIGHTS = 128 << 20
"""Of bf16: 256 MB."""
UPDATES = (("bucket", 1e-6), ("patch", 1e-6), ("patch", 1e-5))
"""Type of `weight_syncer`, and the learning rate."""
LINK = 1e9
PORT = 7001
STORE = 3 << 30
"""Of Ray's object store: a large message must fit."""


class Hosts:
    """Hosts with Ray on each, on which programs run.

    Args:
        count: how many.
    """

    def __init__(self, count: int):
        self.bed = HostBed(count, tmp_size="12g")
        self.ray = RayNodes(self.bed.hosts, store_bytes=STORE)

    def run(self, host: Host, program: str, *args: object) -> str:
        """Run a contestant on a host; returns its last line."""
        command = [sys.executable, str(PROGRAMS / program), *map(str, args)]
        env = {**self.ray.env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = host.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")
        return done.stdout.strip().splitlines()[-1]

    def bare(self, size: int, count: int) -> list[float]:
        """Seconds of messages over bare sockets."""
        near, far = self.bed.hosts[:2]
        command = [sys.executable, str(PROGRAMS / "hosts_bare.py"), "take"]
        taker = far.start(
            [*command, str(PORT), str(size), str(count)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        taker.stdout.readline()
        seconds = json.loads(self.run(near, "hosts_bare.py", "give", far.ip, PORT, size, count))
        taker.wait()
        return seconds

    def ours(self, size: int, count: int) -> list[float]:
        """Seconds of messages between workers."""
        nodes = len(self.bed.hosts)
        return json.loads(self.run(self.bed.hosts[0], "hosts_rlinf.py", "send", nodes, size, count))

    def raw_ray(self, size: int, count: int) -> list[float]:
        """Seconds of arrays to an actor."""
        return json.loads(self.run(self.bed.hosts[0], "hosts_ray.py", size, count))

    def iperf3(self, seconds: int = 3) -> float:
        """Bytes per second that iperf3 sees."""
        near, far = self.bed.hosts[:2]
        server = far.start(["iperf3", "-s", "-1", "-p", str(PORT)], stdout=subprocess.PIPE)
        # To a pipe it does not say when it listens.
        time.sleep(1.0)
        command = ["iperf3", "-c", far.ip, "-p", str(PORT), "-t", str(seconds), "-J"]
        said = near.run(command, capture_output=True, text=True).stdout
        server.kill()
        return json.loads(said)["end"]["sum_received"]["bits_per_second"] / 8

    def spread(self, count: int) -> tuple[list[float], list[float]]:
        """Seconds of broadcasts, and all bytes that each receiver got."""
        return self._counted("hosts_rlinf.py", "broadcast", len(self.bed.hosts), SPREAD, count)

    def weights(self, count: int, kind: str, rate: float) -> tuple[list[float], list[float]]:
        """Seconds of weight updates, and all bytes that each receiver got."""
        nodes = len(self.bed.hosts)
        return self._counted("hosts_weights.py", nodes, WEIGHTS, count, kind, rate)

    def _counted(self, program: str, *args: object) -> tuple[list[float], list[float]]:
        hosts = self.bed.hosts
        before = [host.traffic()[1] for host in hosts]
        seconds = json.loads(self.run(hosts[0], program, *args))
        got = [host.traffic()[1] - then for host, then in zip(hosts, before, strict=True)]
        return seconds, got[1:]

    def close(self) -> None:
        """End all hosts."""
        self.bed.close()


def bulk(rounds: int) -> None:
    """Rates of large messages, contestants in turn."""
    hosts = Hosts(2)
    contestants: dict[str, Callable[[int, int], list[float]]] = {
        "bare sockets": hosts.bare,
        "ours": hosts.ours,
        "raw Ray": hosts.raw_ray,
    }
    rates: dict[tuple[str, str], list[float]] = {}
    lines: list[float] = []
    try:
        for turn in range(rounds):
            names = list(contestants)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                for label, (size, count) in BULK.items():
                    seconds = contestants[name](size, count)[1:]
                    rates.setdefault((name, label), []).extend(size / 1e9 / s for s in seconds)
                print(f"round {turn + 1} of {rounds}: {name}", flush=True)
            if shutil.which("iperf3"):
                lines.append(hosts.iperf3() / 1e9)
    finally:
        hosts.close()
    print(f"\n| GB/s, median (spread) | {' | '.join(BULK)} |\n|---|{'---:|' * len(BULK)}")
    for name in contestants:
        cells = [_cell(rates[name, label]) for label in BULK]
        print(f"| {name} | {' | '.join(cells)} |")
    shares = [
        statistics.median(rates["ours", label]) / statistics.median(rates["bare sockets", label])
        for label in BULK
    ]
    print(f"| ours of bare sockets | {' | '.join(f'{share:.0%}' for share in shares)} |")
    if lines:
        print(f"| iperf3, 3 s | {_cell(lines)} |{' |' * (len(BULK) - 1)}")


def broadcasts(rounds: int) -> None:
    """Broadcasts to more and more hosts over slow links."""
    print(f"\n| broadcast of {SPREAD >> 20} MB | seconds | of one host | received per host (MB) |")
    print("|---|---:|---:|---:|")
    first = None
    for receivers in RECEIVERS:
        hosts = Hosts(receivers + 1)
        try:
            for host in hosts.bed.hosts:
                host.slow(LINK)
            seconds, got = hosts.spread(rounds)
        finally:
            hosts.close()
        middle = statistics.median(seconds)
        first = first or middle
        most = _megabytes(got, rounds)
        share = f"{middle / first:.2f}"
        print(f"| to {receivers} | {_cell(seconds)} | {share} | {most} |", flush=True)


def weights(rounds: int) -> None:
    """Weight updates to one host and to three, whole and as differences."""
    print(f"\n| {WEIGHTS >> 20} million weights in bf16 | to | seconds | received per host (MB) |")
    print("|---|---:|---:|---:|")
    for receivers in RECEIVERS[:2]:
        hosts = Hosts(receivers + 1)
        try:
            for host in hosts.bed.hosts:
                host.slow(LINK)
            for kind, rate in UPDATES:
                seconds, got = hosts.weights(rounds, kind, rate)
                # The first update is whole, and not among those that are counted.
                got = [value - 2 * WEIGHTS for value in got]
                name = f"`{kind}`, learning rate {rate:g}"
                cells = f"{_cell(seconds)} | {_megabytes(got, rounds)}"
                print(f"| {name} | {receivers} | {cells} |", flush=True)
        finally:
            hosts.close()


def _megabytes(got: list[float], count: int) -> str:
    low, high = (value / count / 2**20 for value in (min(got), max(got)))
    return f"{low:.0f} to {high:.0f}"


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


PARTS = {"bulk": bulk, "broadcast": broadcasts, "weights": weights}


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    args = parser.parse_args()
    print(describe_machine())
    print(f"processors busy before: {busy_share():.0%}, {os.cpu_count()} cores", flush=True)
    for part in args.parts:
        PARTS[part](args.rounds)


if __name__ == "__main__":
    main()
