"""This repository, for `benchmarks.hosts`: weights from node 0 to all others.

`hosts_weights.py NODES NUMBERS COUNT TYPE RATE` prints the seconds of each update as JSON. Weights
are bf16, each update moves each by RATE, up or down, and TYPE is that of `weight_syncer`. The first
update, which is whole in any case, is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import torch
from torch import nn

from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker, wait_all

LAYERS = 16


class Layers(nn.Module):
    """Matrices of bf16.

    Args:
        numbers: in all of them.
    """

    def __init__(self, numbers: int):
        super().__init__()
        shape = (numbers // LAYERS // 1024, 1024)
        self.layers = nn.ParameterList(
            nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False)
            for _ in range(LAYERS)
        )


def settings(kind: str) -> SimpleNamespace:
    """Return what senders and receivers read of a configuration."""
    bucket = SimpleNamespace(bucket_size=None, keep_buffers=None)
    return SimpleNamespace(
        weight_syncer=SimpleNamespace(type=kind, verify=True, bucket=bucket),
        actor=SimpleNamespace(group_name="actor", enable_offload=False),
        rollout=SimpleNamespace(group_name="rollout"),
    )


class Actor(Worker):
    """Has the weights, in fp32 as an optimiser has them.

    Args:
        numbers: how many weights.
        kind: type of `weight_syncer`.
    """

    def __init__(self, numbers: int, kind: str):
        super().__init__()
        torch.manual_seed(0)
        self._weights = {
            name: torch.randn(tensor.shape) * 0.02
            for name, tensor in Layers(numbers).named_parameters()
        }
        self._sender = WeightSender(self, settings(kind))
        self._version = 0

    def step(self, rate: float) -> None:
        """Move every weight."""
        for tensor in self._weights.values():
            tensor += rate * torch.randn_like(tensor).sign()

    def send_weights(self) -> int:
        """Send all; the bytes of the messages."""
        self._version += 1
        tensors = lambda: iter(self._weights.items())  # noqa: E731
        return self._sender.send(tensors, self._version, torch.bfloat16)

    def sample(self) -> list[float]:
        """Return a few of the weights."""
        return [w.bfloat16().float().sum().item() for w in self._weights.values()]


class Rollout(Worker):
    """Wants the weights.

    Args:
        numbers: how many weights.
        kind: type of `weight_syncer`.
    """

    def __init__(self, numbers: int, kind: str):
        super().__init__()
        self._model = Layers(numbers)
        self._receiver = WeightReceiver(self, settings(kind))

    def receive_weights(self) -> int:
        """Load the next version."""
        return self._receiver.receive(self._model)

    def sample(self) -> list[float]:
        """Return a few of the weights."""
        return [w.float().sum().item() for w in self._model.parameters()]


def main() -> None:
    """Update several times."""
    nodes, numbers, count = map(int, sys.argv[1:4])
    kind, rate = sys.argv[4], float(sys.argv[5])
    seconds = []
    with Cluster(num_nodes=nodes) as cluster:
        near, far = NodePlacementStrategy([0]), NodePlacementStrategy(list(range(1, nodes)))
        actor = Actor.create_group(numbers, kind).launch(cluster, near, name="actor")
        rollout = Rollout.create_group(numbers, kind).launch(cluster, far, name="rollout")
        for _ in range(count + 1):
            actor.step(rate).wait()
            begin = time.perf_counter()
            wait_all(rollout.receive_weights(), actor.send_weights())
            seconds.append(time.perf_counter() - begin)
        (expected,) = actor.sample().wait()
        if any(found != expected for found in rollout.sample().wait()):
            raise RuntimeError("the weights of a host are not the actor's")
    print(json.dumps(seconds[1:]))


if __name__ == "__main__":
    main()
