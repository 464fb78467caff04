"""Which number formats a device computes in.

Weights that are trained are kept in float32; `precision` says in what they are computed with. One
rank uses autocast, which keeps what lies between products in float32; several let FSDP cast the
weights it gathers, after which all is 16 bits wide. So does one rank of a language model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Number formats by their names in a config."""


@dataclass(frozen=True)
class ComputePrecision:
    """Number formats of a training engine.

    Attributes:
        autocast: format of `torch.autocast` around the forward pass; None is off.
        params: format of weights that FSDP has gathered; None is that in which they are kept.
        reduce: format of gradients that ranks exchange; None is that of `params`.
        note: what the user has to know, if something else was asked for; empty if not.
    """

    autocast: torch.dtype | None = None
    params: torch.dtype | None = None
    reduce: torch.dtype | None = None
    note: str = ""


def training_precision(
    cfg: Any, device: torch.device, world_size: int, casts_alone: bool = False
) -> ComputePrecision:
    """Decide how to compute.

    Args:
        cfg: the `actor` section.
        device: where to train.
        world_size: number of ranks.
        casts_alone: one rank, too, casts weights instead of using autocast.

    Raises:
        ValueError: fp16, whose gradients vanish without loss scaling.
    """
    amp, mixed = cfg.fsdp_config.amp_autocast, cfg.fsdp_config.mixed_precision
    if amp.enabled:
        key, name = "actor.fsdp_config.amp_autocast.precision", amp.precision
    elif mixed.param_dtype is not None:
        key, name = "actor.fsdp_config.mixed_precision.param_dtype", mixed.param_dtype
    else:
        key, name = "actor.model.precision", cfg.model.precision
    if name == "fp16":
        raise ValueError(f"{key} is fp16, which needs loss scaling to train; use bf16 or fp32")
    reduce = None if mixed.reduce_dtype is None else FORMATS[mixed.reduce_dtype]
    compute, note = usable_format(name, device, key)
    if compute is torch.float32:
        return ComputePrecision(reduce=reduce, note=note)
    if amp.enabled or (world_size == 1 and not casts_alone):
        return ComputePrecision(autocast=compute, reduce=reduce)
    # Sums over many ranks lose small gradients in bf16.
    return ComputePrecision(params=compute, reduce=reduce or torch.float32)


def usable_format(name: str, device: torch.device, key: str) -> tuple[torch.dtype, str]:
    """Return the number format of a config value, or float32 where the device has no bf16.

    Args:
        name: `fp32`, `bf16` or `fp16`.
        device: where to compute.
        key: path of the config value.

    Returns:
        The format, and what to tell the user if it is another one than asked for.
    """
    wanted = FORMATS[name]
    if wanted is torch.float32 or computes_in_16_bits(device):
        return wanted, ""
    why = "a CPU emulates it, slowly" if device.type == "cpu" else "this device does not have it"
    return torch.float32, f"{key} is {name}, but {why}: fp32 is used on {device}"


def computes_in_16_bits(device: torch.device) -> bool:
    """Return whether a device has arithmetic for numbers of 16 bits, bf16 among them."""
    if device.type == "cpu":
        return False
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return True
