"""Workers on all nodes exchange objects of all sizes in all ways, and compare what arrives.

Arguments: the number of nodes, and `links` to broadcast and send large tensors by link, over gloo.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker

MIB = 1 << 20
SIZES = (0, 1, 4095, 65_537, MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB)
"""Bytes, around the limits at which the way of a message changes."""


def content(size: int, seed: int) -> dict[str, Any]:
    """What a message has in it."""
    numbers = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return {"array": numbers, "tensor": torch.from_numpy(numbers.copy()), "size": size}


def require_equal(found: dict[str, Any], size: int, seed: int) -> None:
    """Compare what arrived with what was sent."""
    due = content(size, seed)
    assert found["size"] == size and np.array_equal(found["array"], due["array"]), (size, seed)
    assert torch.equal(found["tensor"], due["tensor"]), (size, seed)


class Exchanger(Worker):
    """Sends to all others, and compares what it gets of them."""

    def broadcasts(self) -> int:
        """Let each rank broadcast each size; return how many messages came."""
        groups = [(self._group_name, list(range(self._world_size)))]
        came = 0
        for root in range(self._world_size):
            for size in SIZES:
                own = content(size, root) if root == self._rank else None
                found = self.broadcast(own, groups, (self._group_name, root))
                if root != self._rank:
                    require_equal(found, size, root)
                    came += 1
        return came

    def ring(self) -> int:
        """Send each size to the next rank, as soon as that of the last rank is on its way."""
        after, before = (self._rank + 1) % self._world_size, (self._rank - 1) % self._world_size
        for size in SIZES:
            sent = self.send(content(size, self._rank), self._group_name, after, async_op=True)
            require_equal(self.recv(self._group_name, before), size, before)
            sent.wait()
        return len(SIZES)

    def links(self) -> int:
        """Return how many links this rank has made or joined."""
        return len(self._runtime.endpoint.links._all())

    def put(self, channel: Channel) -> int:
        """Put each size into a channel."""
        for size in SIZES:
            channel.put((self._rank, content(size, self._rank)))
        return len(SIZES)

    def take(self, channel: Channel, count: int) -> int:
        """Take items of all ranks from a channel; those of each come in its order."""
        due = {}
        for _ in range(count):
            rank, found = channel.get()
            place = due.get(rank, 0)
            require_equal(found, SIZES[place], rank)
            due[rank] = place + 1
        return len(due)


def main() -> None:
    """Exchange over as many nodes as the argument says."""
    nodes = int(sys.argv[1])
    if "links" in sys.argv:
        os.environ["RLINF_DEVICE_LINK"] = "gloo"
    with Cluster(num_nodes=nodes, distributed_log_dir="/tmp/logs-transfers") as cluster:
        everywhere = NodePlacementStrategy(list(range(nodes)))
        group = Exchanger.create_group().launch(cluster, everywhere, name="exchangers")
        last = NodePlacementStrategy([nodes - 1])
        taker = Exchanger.create_group().launch(cluster, last, name="taker")
        channel = Channel.create("items", maxsize=3)
        broadcasts, ring = group.broadcasts().wait(), group.ring().wait()
        if "links" in sys.argv:
            print(broadcasts, ring, group.links().wait())
            return
        taking = taker.take(channel, nodes * len(SIZES))
        put, taken = group.put(channel).wait(), taking.wait()
    print(broadcasts, ring, put, taken)


if __name__ == "__main__":
    main()
