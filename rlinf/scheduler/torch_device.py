"""The kind of accelerator that this process has, as torch names it."""

from __future__ import annotations

import os
from typing import Any


def torch_device_type() -> str:
    """Return "cuda", "xpu", "npu", "musa" or "cpu"."""
    return os.environ.get("RLINF_TORCH_DEVICE", "cpu")


def torch_platform() -> Any:
    """Return the torch module of this process's devices, such as `torch.cuda` or `torch.cpu`."""
    import torch

    return getattr(torch, torch_device_type())
