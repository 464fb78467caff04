"""This repository, for `benchmarks.hosts`: tensors between workers on different nodes.

`hosts_rlinf.py send NODES SIZE COUNT` prints the seconds of each message from node 0 to node 1 as
JSON; `hosts_rlinf.py broadcast NODES SIZE COUNT` those of each broadcast from node 0 to all others.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker


class Peer(Worker):
    """One worker on each node."""

    def send_all(self, size: int, count: int) -> list[float]:
        """Send messages from rank 0 to rank 1, which answers each; the seconds of each."""
        seconds = []
        if self._rank == 0:
            message = torch.ones(size, dtype=torch.uint8)
            for _ in range(count):
                begin = time.perf_counter()
                self.send(message, self._group_name, 1)
                self.recv(self._group_name, 1)
                seconds.append(time.perf_counter() - begin)
        elif self._rank == 1:
            for _ in range(count):
                taken = self.recv(self._group_name, 0)
                self.send(len(taken), self._group_name, 0)
        return seconds

    def spread(self, size: int, count: int) -> list[float]:
        """Broadcast from rank 0; the seconds until all have it."""
        message = torch.ones(size, dtype=torch.uint8) if self._rank == 0 else None
        self.broadcast(0)
        seconds = []
        for _ in range(count):
            begin = time.perf_counter()
            taken = self.broadcast(message)
            seconds.append(time.perf_counter() - begin)
            assert len(taken) == size
        return seconds


def main() -> None:
    """Run one kind of exchange."""
    kind, *rest = sys.argv[1:]
    nodes, size, count = map(int, rest)
    with Cluster(num_nodes=nodes) as cluster:
        everywhere = NodePlacementStrategy(list(range(nodes)))
        peers = Peer.create_group().launch(cluster, everywhere, name="peers")
        called = peers.send_all if kind == "send" else peers.spread
        seconds = called(size, count).wait()[0]
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
