"""Gives memory and values to a model that was built without weights: to each rank its own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlinf.models.deferred import RowsOf, assign_parameters
from rlinf.utils.shards import is_sharded, like, own_part, own_rows

Parts = Callable[[RowsOf], Iterator[tuple[str, Tensor]]]
"""Gives each parameter, or the rows that are wanted of it, one after the other."""


@torch.no_grad()
def fill(model: nn.Module, parts: Parts, device: torch.device, ranks: int = 1) -> None:
    """Fill the parameters of a model, on all ranks that share it.

    Args:
        model: sharded or not, its parameters on the meta device.
        parts: what they get; a parameter with several names comes once.
        device: where to.
        ranks: that share it.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    filled: dict[str, nn.Parameter] = {}
    for name, part in parts(lambda name: own_rows(named[name])):
        old = named[name]
        local = torch.empty(part.shape, dtype=old.dtype, device=device).copy_(part)
        filled[name] = nn.Parameter(like(old, local), requires_grad=old.requires_grad)
    assign_parameters(model, filled)
    if not any(is_sharded(parameter) for parameter in filled.values()):
        model.to(device)
    if ranks > 1:
        _equalise(model)


def parts_of(model: nn.Module) -> Parts:
    """Return what fills a model of the same kind, sharded alike, with the weights of this one."""

    def parts(rows: RowsOf) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in model.named_parameters():
            yield name, own_part(parameter)

    return parts


def _equalise(model: nn.Module) -> None:
    """Let copies of the same rows be equal, and buffers, which each rank has whole.

    Two machines may differ in the last bits of what they draw.
    """
    for tensor in model.state_dict().values():
        if not is_sharded(tensor):
            dist.broadcast(tensor, 0)
            continue
        mesh = tensor.device_mesh
        for dimension, placement in enumerate(tensor.placements):
            if placement.is_replicate() and mesh.size(dimension) > 1:
                dist.broadcast(tensor.to_local(), group=mesh.get_group(dimension), group_src=0)
