"""Modules that compute their activations again in the backward pass instead of keeping them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_activations(module: nn.Module) -> None:
    """Let a module compute its activations again in backward passes; results are the same."""
    module.__class__ = _recomputing(type(module))


def recomputes(module: nn.Module) -> bool:
    """Return whether a module was told to compute its activations again."""
    return getattr(type(module), "_recomputes", False)


def recompute_named(model: nn.Module, names: Collection[str]) -> None:
    """Let all modules of some classes compute their activations again; see above.

    Args:
        model: What they are in.
        names: Of the classes.

    Raises:
        ValueError: There are no such modules.
    """
    found = [module for module in model.modules() if type(module).__name__ in names]
    if not found:
        raise ValueError(
            f"fsdp_config.gradient_checkpointing is true, but {type(model).__name__} does not "
            "say which of its modules to compute again: name their classes in "
            "_no_split_modules, or set it to false"
        )
    for module in found:
        recompute_activations(module)


@cache
def _recomputing(cls: type[nn.Module]) -> type[nn.Module]:
    """Return a class of the same name; copies of its modules do the same."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return cls.forward(self, *args, **kwargs)
        return checkpoint(cls.forward, self, *args, use_reentrant=False, **kwargs)

    own = {"forward": forward, "_recomputes": True, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), own)
