"""Program run by test_many_nodes.py: a Ray cluster of several nodes on this machine, used for real.

Each node is a raylet of its own with its own environment, as on as many machines.
"""

from __future__ import annotations

import json
import os
import sys
import time

from ray.cluster_utils import Cluster as RayCluster

from rlinf.scheduler import (
    Channel,
    Cluster,
    ClusterError,
    HybridComponentPlacement,
    NodePlacementStrategy,
    Worker,
    WorkerDied,
)
from tests.fork_server import ForkServer, serving_ray


class Where(Worker):
    """Tells where it is."""

    def facts(self) -> dict[str, str | None]:
        names = [
            "RANK",
            "WORLD_SIZE",
            "NODE_RANK",
            "CLUSTER_NODE_RANK",
            "LOCAL_RANK",
            "COLOUR",
            "RLINF_NODE_RANK",
        ]
        return {name: os.environ.get(name) for name in names}

    def reduce(self) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        value = torch.tensor([float(self._rank)])
        dist.all_reduce(value)
        dist.destroy_process_group()
        return value.item()

    def ring(self, size: int) -> bool:
        """Sends a tensor to the next rank and receives that of the one before."""
        import torch

        after, before = (self._rank + 1) % self._world_size, (self._rank - 1) % self._world_size
        work = self.send(torch.full((size,), self._rank), self._group_name, after, async_op=True)
        received = self.recv(self._group_name, before)
        work.wait()
        return bool((received == before).all()) and received.numel() == size

    def spread(self, size: int) -> bool:
        """Takes part in a broadcast from rank 3, on neither the first nor the last node."""
        import torch

        tensor = torch.arange(size) if self._rank == 3 else None
        groups = [(self._group_name, list(range(self._world_size)))]
        return torch.equal(
            self.broadcast(tensor, groups, (self._group_name, 3)), torch.arange(size)
        )

    def produce(self, channel: Channel, count: int, size: int) -> None:
        import torch

        for i in range(count):
            channel.put((self._rank, i, torch.full((size,), i)))

    def consume(self, channel: Channel, count: int) -> list[tuple[int, int]]:
        out = []
        for _ in range(count):
            rank, i, tensor = channel.get()
            assert bool((tensor == i).all())
            out.append((rank, i))
        return out

    def die(self, rank: int) -> None:
        self.log_info("about to go")
        if self._rank == rank:
            os.kill(os.getpid(), 9)
        time.sleep(30)


def start_nodes(ranks: list[int | None]) -> RayCluster:
    """Starts one raylet per rank; None leaves RLINF_NODE_RANK unset."""
    nodes = RayCluster()
    for rank in ranks:
        env = {} if rank is None else {"RLINF_NODE_RANK": str(rank)}
        nodes.add_node(num_cpus=2, include_dashboard=False, env_vars=env)
    nodes.wait_for_nodes()
    return nodes


def four_nodes(log_dir: str) -> dict:
    """Node groups, ranks, environments and a death on another node."""
    nodes = start_nodes([0, 2, 1, 3])
    cfg = {
        "cluster": {
            "num_nodes": 4,
            "address": nodes.address,
            "node_groups": [
                {
                    "label": "sim",
                    "node_ranks": "2-3",
                    "env_configs": [
                        {"node_ranks": "2", "env_vars": [{"COLOUR": "red"}]},
                        {"node_ranks": "3", "env_vars": [{"COLOUR": "blue"}]},
                    ],
                },
                {"label": "learn", "node_ranks": "0-1"},
            ],
            "component_placement": {
                "actor": {"node_group": "learn", "placement": "0-1"},
                "env": {"node_group": ["sim", "learn"], "placement": "0-3:0-7"},
            },
        }
    }
    out = {}
    with Cluster(cluster_cfg=cfg["cluster"], distributed_log_dir=log_dir) as cluster:
        placement = HybridComponentPlacement(cfg, cluster)
        actor = Where.create_group().launch(cluster, placement.get_strategy("actor"), name="actor")
        env = Where.create_group().launch(cluster, placement.get_strategy("env"), name="env")
        out["actor"] = actor.facts().wait()
        out["env"] = env.facts().wait()
        out["reduce"] = env.reduce().wait()
        out["ring"] = [all(env.ring(size).wait()) for size in (10, 1_000_000)]
        out["spread"] = [all(env.spread(size).wait()) for size in (10, 1_000_000)]
        channel = Channel.create("across", distributed=True, maxsize=4)
        taking = env.consume(channel, 5)
        actor.produce(channel, 20, 100_000).wait()
        out["taken"] = sorted(tuple(item) for part in taking.wait() for item in part)
        actor.produce(channel, 1, 100_000).wait()
        out["driver"] = sorted(channel.get()[:2] for _ in range(2))
        try:
            env.die(1).wait()
        except WorkerDied as error:
            out["died"] = [
                error.worker,
                error.node_rank,
                error.signal,
                error.activity,
                error.log_tail[-1],
            ]
    nodes.shutdown()
    return out


def two_nodes(log_dir: str) -> dict:
    """Without RLINF_NODE_RANK the head is first; missing and extra nodes are named."""
    nodes = start_nodes([None, None])
    os.environ["RAY_ADDRESS"] = nodes.address
    out = {}
    with Cluster(num_nodes=2, distributed_log_dir=log_dir) as cluster:
        out["head_first"] = cluster.get_node_info(0).is_head
        out["ranks"] = (
            Where.create_group().launch(cluster, NodePlacementStrategy([0, 1])).facts().wait()
        )
    with Cluster(num_nodes=1, distributed_log_dir=log_dir) as cluster:
        out["one_of_two"] = cluster.num_nodes
    try:
        Cluster(cluster_cfg={"num_nodes": 3, "timeouts": {"nodes": 1.0}})
    except ClusterError as error:
        out["missing"] = str(error)
    try:
        Cluster(cluster_cfg={"num_nodes": 2, "node_groups": [{"label": "a", "node_ranks": "0"}]})
    except ValueError as error:
        out["unranked"] = str(error)
    nodes.shutdown()
    return out


if __name__ == "__main__":
    with ForkServer(("torch",)) as fork_server, serving_ray(fork_server.address):
        result = {"four": four_nodes, "two": two_nodes}[sys.argv[1]](sys.argv[2])
    print("RESULT " + json.dumps(result))
