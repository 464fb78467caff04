"""Bytes that training a model takes, known before there are any: works on the meta device, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_STEP_COUNTER = 4
"""AdamW counts its steps in one float32 for each weight tensor."""


@dataclass(frozen=True)
class TrainingBytes:
    """What one rank keeps; of several, the one that has most.

    Attributes:
        parameters: its shards of the weights, in the format in which they are kept.
        buffers: which are not sharded.
        gradients: of what is trained.
        optimizer: state of AdamW once it has made a step.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int

    @classmethod
    def of(cls, model: nn.Module, ranks: int = 1) -> TrainingBytes:
        """Count the tensors of a model as `TrainEngine` keeps them.

        Args:
            model: whole, not sharded; may be on the meta device.
            ranks: that share it.
        """
        shards = {name: _shard_bytes(p, ranks) for name, p in model.named_parameters()}
        trained = [shards[name] for name, p in model.named_parameters() if p.requires_grad]
        return cls(
            parameters=sum(shards.values()),
            buffers=sum(buffer.nbytes for buffer in model.buffers()),
            gradients=sum(trained),
            optimizer=sum(2 * size + _STEP_COUNTER for size in trained),
        )


def _shard_bytes(tensor: Tensor, ranks: int) -> int:
    """Bytes of the first, and so the largest, of the pieces into which FSDP cuts a tensor."""
    if ranks == 1 or tensor.dim() == 0:
        return tensor.nbytes
    rows = -(-len(tensor) // ranks)
    return rows * (tensor.nbytes // max(1, len(tensor)))


def saved_bytes(model: nn.Module, run: Callable[[], Any]) -> int:
    """Bytes that a forward pass keeps for its backward pass, besides weights and buffers.

    Args:
        model: whose tensors are not counted.
        run: makes the forward pass.
    """
    own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            # Held, so that no other storage gets its address.
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    total = sum(storage.nbytes() for storage in kept.values())
    del result
    return total
