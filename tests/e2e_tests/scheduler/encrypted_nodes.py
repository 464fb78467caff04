"""Program run by test_encrypted_nodes.py: two nodes of Ray on this machine, in an encrypted run.

`encrypted_nodes.py LOG_DIR INTERPRETER`: workers on the second node have that interpreter, and
another home than Ray.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker
from tests.e2e_tests.scheduler.many_nodes import start_nodes


class Peer(Worker):
    """One worker on each node."""

    def exchange(self, size: int) -> bool:
        """Sends to the other and receives from it at once, and takes part in a broadcast."""
        other = 1 - self._rank
        sent = torch.full((size,), self._rank, dtype=torch.uint8)
        work = self.send(sent, self._group_name, other, async_op=True)
        received = self.recv(self._group_name, other)
        work.wait()
        groups = [(self._group_name, [0, 1])]
        told = self.broadcast(torch.arange(size) if self._rank == 0 else None, groups)
        return (
            received.numel() == size
            and bool((received == other).all())
            and torch.equal(told, torch.arange(size))
        )

    def put(self, channel: Channel, count: int) -> None:
        for number in range(count):
            channel.put(torch.full((100_000,), number))

    def take(self, channel: Channel, count: int) -> list[int]:
        return [int(channel.get()[-1]) for _ in range(count)]

    def facts(self) -> dict[str, Any]:
        """What is known of this process and of its connections."""
        runtime = self._runtime
        sockets = [runtime.registry._connection.sock]
        sockets += [c.sock for c in runtime.endpoint.connections._out.values()]
        return {
            "home": os.environ["HOME"],
            "interpreter": os.environ.get("STARTED_BY"),
            "derived": runtime.run.salt is not None,
            "sockets": sorted(f"{s.family.name} {type(s).__name__}" for s in sockets),
        }


def main() -> None:
    """Exchanges all kinds of messages."""
    log_dir, interpreter = sys.argv[1:]
    nodes = start_nodes([0, 1])
    other = {"node_ranks": "1", "env_vars": [{"HOME": "/nowhere"}]}
    cfg = {
        "num_nodes": 2,
        "address": nodes.address,
        "encryption": True,
        "node_groups": [
            {
                "label": "both",
                "node_ranks": "0-1",
                "env_configs": [other | {"python_interpreter_path": interpreter}],
            }
        ],
    }
    out: dict[str, Any] = {}
    with Cluster(cluster_cfg=cfg, distributed_log_dir=log_dir) as cluster:
        places = NodePlacementStrategy([0, 1], "both")
        peers = Peer.create_group().launch(cluster, places, name="peers")
        out["exchanged"] = [all(peers.exchange(s).wait()) for s in (0, 1, 100_000, 5_000_000)]
        channel = Channel.create("numbers", maxsize=4)
        taking = peers.execute_on(1).take(channel, 20)
        peers.execute_on(0).put(channel, 20).wait()
        out["taken"] = taking.wait()[0]
        out["facts"] = peers.facts().wait()
    nodes.shutdown()
    print("RESULT " + json.dumps(out))


if __name__ == "__main__":
    main()
