"""What a rank has of a tensor that FSDP has spread over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor, nn

Shards = Callable[[], Iterator[tuple[str, Tensor]]]
"""Gives tensors with their names, each as sharded as it is; can be called again and again."""

Rows = tuple[int, int]
"""First row of a part of a tensor, and the one after its last."""


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is one of torch.distributed, of which this rank has a part."""
    return hasattr(tensor, "full_tensor")


def own_rows(tensor: Tensor) -> Rows | None:
    """Return which rows this rank has; None is all of them."""
    if not is_sharded(tensor):
        return None
    rows = len(tensor)
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_shard():
            # As torch.chunk cuts it.
            size = -(-rows // tensor.device_mesh.size(dimension))
            first = min(rows, size * tensor.device_mesh.get_local_rank(dimension))
            return first, min(rows, first + size)
    return None


def own_part(tensor: Tensor) -> Tensor:
    """Return the memory of what this rank has of a tensor."""
    tensor = tensor.detach()
    return tensor.to_local() if is_sharded(tensor) else tensor


def cut(tensor: Tensor, rows: Rows | None) -> Tensor:
    """Return some rows of a whole tensor."""
    return tensor if rows is None else tensor[rows[0] : rows[1]]


def like(tensor: Tensor, part: Tensor) -> Tensor:
    """Return a tensor that is sharded as another one.

    Args:
        tensor: the other one.
        part: what this rank has of the new one.
    """
    if not is_sharded(tensor):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


class ShardPlace(NamedTuple):
    """Where this rank is among the ranks that share a model.

    Attributes:
        copy: number of the copy of the model that it has a part of.
        copies: how many there are.
        member: number of its part in that copy.
    """

    copy: int = 0
    copies: int = 1
    member: int = 0

    @classmethod
    def of(cls, model: nn.Module) -> ShardPlace:
        """Read it off a model."""
        for parameter in model.parameters():
            if is_sharded(parameter):
                mesh = parameter.device_mesh
                if mesh.ndim == 1:
                    return cls(member=mesh.get_local_rank(0))
                return cls(mesh.get_local_rank(0), mesh.size(0), mesh.get_local_rank(1))
        return cls()
