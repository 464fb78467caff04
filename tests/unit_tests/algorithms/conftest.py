"""Single-threaded torch, ranks that are only pretended, registries that forget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlinf.algorithms import registry
from rlinf.algorithms.rewards import reward_registry
from rlinf.config import plugins


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def forgetful_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    functions = (registry.advantage_registry, registry.policy_loss_registry)
    for table in functions:
        table.load_builtin()
        monkeypatch.setattr(table, "_arguments", dict(table._arguments))
    reward_registry.load_builtin()
    for table in (*functions, reward_registry):
        monkeypatch.setattr(table, "_items", dict(table._items))
    monkeypatch.setattr(registry, "_own_scale", set(registry._own_scale))
    schemas = {kind: dict(names) for kind, names in plugins._schemas.items()}
    monkeypatch.setattr(plugins, "_schemas", schemas)
    monkeypatch.setattr(plugins, "_replaced", set(plugins._replaced))


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
