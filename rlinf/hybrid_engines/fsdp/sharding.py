"""Spreads a model over ranks with FSDP2."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlinf.hybrid_engines.fsdp.precision import ComputePrecision
from rlinf.utils.shards import is_sharded

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shard(
    model: nn.Module, cfg: Any, precision: ComputePrecision, device: torch.device
) -> nn.Module:
    """Shard a model in place, its layers one by one.

    Args:
        model: equal on each rank; its parameters may be on the meta device, and stay there.
        cfg: the `fsdp_config` section.
        precision: number formats of weights in use and of gradients in flight.
        device: where to train.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = set(cfg.wrap_policy.transformer_layer_cls_to_wrap) or set(
        getattr(model, "_no_split_modules", ())
    )
    names |= set(cfg.wrap_policy.module_classes_to_wrap)
    gathered = cfg.sharding_strategy in ("shard_grad_op", "no_shard") or dist.get_world_size() == 1
    options = {
        "mesh": _mesh(cfg.sharding_strategy, device.type),
        "reshard_after_forward": cfg.reshard_after_forward and not gathered,
        # Inputs keep their format: what is normalised in float32 must not be rounded before.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=precision.params,
            reduce_dtype=precision.reduce,
            cast_forward_inputs=False,
        ),
    }
    # Inner modules first: an outer one then takes what is left.
    for module in reversed(list(model.modules())):
        if type(module).__name__ in names:
            fully_shard(module, **options)
    return fully_shard(model, **options)


def _mesh(strategy: str, device: str) -> DeviceMesh | None:
    """Ranks as a table: those of a column hold the same shard; None is one row of all ranks.

    Raises:
        ValueError: nodes have different numbers of ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh

    ranks = dist.get_world_size()
    if strategy == "no_shard":
        per_row = 1
    elif strategy == "hybrid_shard":
        per_row = int(os.environ.get("NODE_LOCAL_WORLD_SIZE", ranks))
        counts: list[Any] = [None] * ranks
        dist.all_gather_object(counts, per_row)
        if len(set(counts)) > 1:
            raise ValueError(
                "fsdp_config.sharding_strategy is hybrid_shard, which needs as many actor ranks on "
                f"each node; the nodes of ranks 0 to {ranks - 1} have {counts}; place the actor "
                "alike on all nodes, or use full_shard"
            )
    else:
        return None
    if per_row == ranks:
        return None
    names = ("replicate", "shard")
    return init_device_mesh(device, (ranks // per_row, per_row), mesh_dim_names=names)


def whole(tensor: Tensor) -> Tensor:
    """Return the tensor that the shards of all ranks make; itself if it is not sharded."""
    if not is_sharded(tensor):
        return tensor
    if tensor.device_mesh.size() > 1:
        return tensor.full_tensor()
    # With gradients, each weight would become a node of their graph, which takes ten times as long.
    with torch.no_grad():
        return tensor.to_local()
