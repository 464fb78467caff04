"""Spreads a model over ranks with FSDP2."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rlinf.hybrid_engines.fsdp.precision import ComputePrecision


def shard(model: nn.Module, cfg: Any, precision: ComputePrecision) -> nn.Module:
    """Shards a model in place, its layers one by one.

    Args:
        model: equal on each rank.
        cfg: the `fsdp_config` section.
        precision: number formats of weights in use and of gradients in flight.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = set(cfg.wrap_policy.transformer_layer_cls_to_wrap) or set(
        getattr(model, "_no_split_modules", ())
    )
    options = {
        "reshard_after_forward": cfg.reshard_after_forward,
        # Inputs keep their format: what is normalised in float32 must not be rounded before.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=precision.params,
            reduce_dtype=precision.reduce,
            cast_forward_inputs=False,
        ),
    }
    for module in model.modules():
        if type(module).__name__ in names:
            fully_shard(module, **options)
    return fully_shard(model, **options)


def whole(tensor: Tensor) -> Tensor:
    """The tensor that the shards of all ranks make; itself if it is not sharded."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
