"""Modules that compute their activations again in the backward pass instead of keeping them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_activations(module: nn.Module) -> None:
    """Let a module compute its activations again in backward passes; results are the same."""
    module.__class__ = _recomputing(type(module))


@cache
def _recomputing(cls: type[nn.Module]) -> type[nn.Module]:
    """Return a class of the same name; copies of its modules do the same."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return cls.forward(self, *args, **kwargs)
        return checkpoint(cls.forward, self, *args, use_reentrant=False, **kwargs)

    return type(cls.__name__, (cls,), {"forward": forward, "__doc__": cls.__doc__})
