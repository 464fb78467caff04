"""What a rank has of a tensor that FSDP has spread over ranks."""

from __future__ import annotations

from torch import Tensor

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
