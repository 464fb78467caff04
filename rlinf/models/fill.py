"""Reads tensors of files into a module, and names those that do not fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from rlinf.models.tensor_files import TensorSource

if TYPE_CHECKING:
    from rlinf.models.deferred import DeferredWeights


def fill(
    module: nn.Module,
    source: TensorSource,
    names: Mapping[str, str],
    where: str,
    deferral: DeferredWeights | None = None,
    ignored: Collection[str] = (),
) -> None:
    """Read tensors into a module, one at a time.

    Args:
        module: What to fill.
        source: The tensors, all of which must be wanted.
        names: Names of tensors there, by names of those of the module that are wanted, parameters
            and buffers.
        where: The source, for errors.
        deferral: Reads parameters later; buffers are read at once.
        ignored: Tensors there that may be unwanted.

    Raises:
        ValueError: Tensors are missing, or there are others; each is named.
    """
    own, there = module.state_dict(), set(source.names())
    wrong = [f"missing {other}" for other in names.values() if other not in there]
    wrong += [f"unexpected {other}" for other in sorted(there - set(names.values()) - set(ignored))]
    wrong += [
        f"{other} is {list(source.shape(other))} there and {list(own[name].shape)} here"
        for name, other in names.items()
        if other in there and source.shape(other) != tuple(own[name].shape)
    ]
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise ValueError(f"{where} is not of this model: {'; '.join(wrong[:8])}{more}")
    later = set()
    if deferral is not None:
        later = {name for name, _ in module.named_parameters()} & names.keys()
        deferral.read_from(module, source, {name: names[name] for name in later})
    with torch.no_grad():
        for name, other in names.items():
            if name not in later:
                own[name].copy_(source.read(other))
