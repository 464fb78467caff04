"""Single-threaded torch, and ranks that are only pretended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def on_ranks() -> Callable[..., list[Any]]:
    """Runs `task(shard, all_reduce)` for every shard as if each were a rank.

    The first pass collects what each rank contributes, the second hands out the reduced tensor.
    """

    def run(task: Callable[..., Any], shards: list[Any], op: Callable = torch.add) -> list[Any]:
        sent: list[torch.Tensor] = []
        for shard in shards:
            task(shard, lambda tensor: sent.append(tensor.clone()))
        total = sent[0]
        for tensor in sent[1:]:
            total = op(total, tensor)
        return [task(shard, lambda tensor: total) for shard in shards]

    return run
