"""Checksums of tensors that are spread over ranks, without gathering them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.weight_sync.checksum import share_of_checksum

_MODULUS = 1 << 64


def whole_checksums(engine: TrainEngine, tensors: Sequence[Tensor | None]) -> list[int]:
    """Return the checksums of the whole tensors, on each rank; all ranks call it.

    A checksum is a sum over places, so each rank adds what its shard has: one small message for all
    tensors, and the same result for any number of ranks.

    Args:
        engine: whose ranks they are spread over.
        tensors: sharded, or equal on all ranks; None has the checksum 0.
    """
    rank = dist.get_rank() if engine.world_size > 1 else 0
    zero = torch.zeros((), dtype=torch.int64, device=engine.device)
    shares = [zero if t is None else _share(t, rank).to(engine.device) for t in tensors]
    if not shares:
        return []
    sums = engine.all_reduce(torch.stack(shares)).tolist()
    sizes = [0 if t is None else t.numel() * t.element_size() for t in tensors]
    return [(number + size) % _MODULUS for number, size in zip(sums, sizes, strict=True)]


def _share(tensor: Tensor, rank: int) -> Tensor:
    tensor = tensor.detach()
    local, first = _shard(tensor)
    if local is None:
        local = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        return share_of_checksum(local) * int(rank == 0)
    return share_of_checksum(local, first)


def _shard(tensor: Tensor) -> tuple[Tensor | None, int]:
    """This rank's rows and the number of 32-bit words before them; None if it is not so simple."""
    placements = getattr(tensor, "placements", ())
    if len(placements) != 1 or not placements[0].is_shard(0):
        return None, 0
    mesh = tensor.device_mesh
    rows = len(tensor)
    each = -(-rows // mesh.size())
    row_bytes = tensor.numel() // max(1, rows) * tensor.element_size()
    if each * row_bytes % 4:
        return None, 0
    first = min(each * mesh.get_local_rank(), rows)
    return tensor.to_local(), first * row_bytes // 4
