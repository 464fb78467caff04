"""Weights that go by link: each actor rank gives what it has to one group of all who need it."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from rlinf.scheduler.collective.device_group import DeviceGroup
from rlinf.scheduler.collective.link_tensors import LINK_BYTES
from rlinf.utils.shards import ShardPlace, own_part
from tests.unit_tests.hybrid_engines.weight_sync.test_shards import (
    ACTOR,
    ROLLOUT,
    Model,
    cfg,
    cut,
    rows_of,
)
from tests.unit_tests.scheduler.small_run import SmallRun
from tests.unit_tests.scheduler.waits import PROMPTLY

ROWS, COLUMNS = 1200, 300
LIMIT = 1 << 20


def weights(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "wide": torch.randn(ROWS, COLUMNS, generator=generator),
        "half": torch.randn(ROWS, COLUMNS, generator=generator).bfloat16(),
        "short": torch.randn(40, generator=generator),
        "scalar": torch.tensor(float(version)),
    }


class Rank:
    """A worker, as far as weight updates know it, with the real transport."""

    def __init__(self, runtime: Any, group: str, rank: int, sizes: dict[str, int]):
        self.group_name, self.rank, self._sizes = group, rank, sizes
        self.world_size = sizes[group]
        self._cluster_node_rank = runtime.endpoint.node_rank
        self._broadcast = runtime.broadcaster.broadcast

    def _world_size_of(self, group: str) -> int:
        return self._sizes[group]

    def broadcast(
        self, obj: Any, groups: Any, source: Any, async_op: bool = False, hold: bool = False
    ) -> Any:
        work = self._broadcast(obj, groups, source, hold)
        return work if async_op else work.wait(PROMPTLY)


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("senders, receivers, nodes", [(2, 3, 1), (3, 2, 2), (1, 2, 3)])
def test_each_rank_gives_what_it_has_to_the_group_once(
    tmp_path, monkeypatch, senders, receivers, nodes, sharded
):
    monkeypatch.setenv("RLINF_DEVICE_LINK", "gloo")
    sizes = {ACTOR: senders, ROLLOUT: receivers}
    given: Counter[int] = Counter()
    send = DeviceGroup.send

    def counted(group: DeviceGroup, number: int, tensors: Any, *rest: Any) -> None:
        given[len(group._order) - 1] += sum(tensor.nbytes for tensor in tensors)
        send(group, number, tensors, *rest)

    monkeypatch.setattr(DeviceGroup, "send", counted)
    small_run = SmallRun(tmp_path, num_nodes=nodes)
    ranks = []
    for group, size in sizes.items():
        for rank in range(size):
            node = 0 if group == ACTOR else rank % nodes
            runtime = small_run.join(f"{group}:{rank}", node_rank=node)
            ranks.append(Rank(runtime, group, rank, sizes))

    empty = {name: torch.zeros_like(tensor) for name, tensor in weights(0).items()}
    models = [cut(rank, receivers if sharded else 1, empty) for rank in range(receivers)]
    ends: dict[Any, Any] = {}

    def update(version: int, worker: Rank) -> int:
        key = worker.group_name, worker.rank
        if worker.group_name == ACTOR:
            end = ends.setdefault(key, WeightSender(worker, cfg(LIMIT)))
            tensors = cut(worker.rank, senders, weights(version))
            place = ShardPlace(0, 1, worker.rank)
            return end.send(lambda: iter(tensors.items()), version, place=place)
        end = ends.setdefault(key, WeightReceiver(worker, cfg(LIMIT)))
        return end.receive(Model(models[worker.rank]))

    try:
        for version in (4, 5):
            given.clear()
            with ThreadPoolExecutor(len(ranks)) as pool:
                found = list(pool.map(partial(update, version), ranks))
            assert found[senders:] == [version] * receivers
            for rank, model in enumerate(models):
                expected = cut(rank, receivers if sharded else 1, weights(version))
                for name, tensor in model.items():
                    assert torch.equal(own_part(tensor), own_part(expected[name])), name
            assert given == _required(senders, receivers, sharded)
    finally:
        small_run.close()


def _required(senders: int, receivers: int, sharded: bool) -> dict[int, int]:
    """Bytes that leave by link, by the number of receivers of the link."""
    found: Counter[int] = Counter()
    for tensor in weights(0).values():
        if tensor.nbytes < LINK_BYTES:
            continue
        for sender in range(senders):
            have = rows_of(tensor, sender, senders)
            if not sharded:
                found[receivers] += len(have) * tensor[0].nbytes
                continue
            for receiver in range(receivers):
                common = len(have & rows_of(tensor, receiver, receivers)) * tensor[0].nbytes
                found[1] += common if common >= LINK_BYTES else 0
    return dict(found)
