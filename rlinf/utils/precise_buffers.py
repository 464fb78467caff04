"""Buffers that keep their number format when a module is cast."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class PreciseBuffers(nn.Module):
    """A module whose own buffers follow it to other devices but not to other number formats.

    `policy.to(torch.bfloat16)` is meant for weights; statistics and bounds must not be rounded.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PreciseBuffers:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new.dtype != old.dtype:
                # A tensor without storage has no values to keep.
                values = new if old.is_meta else old
                self._buffers[name] = values.to(device=new.device, dtype=old.dtype)
        return self
