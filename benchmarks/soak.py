"""A fresh key for each of a million requests through one channel: memory stays where it is.

Usage, from the root of the repository:

    python -m benchmarks.soak --keys 1000000

One worker puts an item under a new key and takes it out again, as a server does that answers each
request under its own key. Prints resident memory of the keeper and of the worker along the way.
"""

from __future__ import annotations

import argparse
import sys
import time

import psutil

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker


class Asker(Worker):
    """Puts and takes under keys that nobody used before."""

    def ask(self, channel: Channel, first: int, count: int) -> int:
        """Return the number of items that came back as they were."""
        right = 0
        for key in range(first, first + count):
            channel.put(key, key=f"request {key}")
            right += channel.get(key=f"request {key}") == key
        return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=10, help="looks at the memory")
    args = parser.parse_args()
    each = args.keys // args.parts
    with Cluster(num_nodes=1, trace=False) as cluster:
        group = Asker.create_group().launch(cluster, NodePlacementStrategy([0]), name="Asker")
        channel = Channel.create("requests")
        group.ask(channel, -1000, 1000).wait()
        processes = {
            name: psutil.Process(pid)
            for name, pid in (("worker", group.worker_info_list[0].pid), ("keeper", _keeper()))
        }
        print("| keys | worker (MiB) | keeper (MiB) | keys/s |\n|---:|---:|---:|---:|")
        for part in range(args.parts):
            begin = time.perf_counter()
            assert group.ask(channel, part * each, each).wait() == [each]
            memory = [p.memory_info().rss / 2**20 for p in processes.values()]
            speed = each / (time.perf_counter() - begin)
            print(f"| {(part + 1) * each:,} | {memory[0]:.1f} | {memory[1]:.1f} | {speed:,.0f} |")
            sys.stdout.flush()
        assert channel.keys() == []
    return 0


def _keeper() -> int:
    """Process of the keeper: the one that Ray has named after its class."""
    for process in psutil.Process().children(recursive=True):
        if any("ChannelKeeper" in part for part in process.cmdline()):
            return process.pid
    raise RuntimeError("there is no keeper")


if __name__ == "__main__":
    sys.exit(main())
