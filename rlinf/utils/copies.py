"""Copies from the host to a device."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


def copied_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on a device; on a GPU, once its stream has reached this point.

    From ordinary memory, a copy of more than 64 KB would wait for all that here.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        try:
            tensor = tensor.contiguous().pin_memory()
        except RuntimeError as error:
            told = f"copies to the GPU wait for it: no memory can be pinned ({error})"
            warnings.warn(told, stacklevel=2)
    return tensor.to(device, non_blocking=True)
