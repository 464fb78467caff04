"""RMS normalisation with a third of the passes over memory.

The modules of transformers are made of six elementwise operations, each of which autograd
remembers. On a CPU, where a small model spends much of its time in them, one function with its
gradient written out is three times as fast; its result is the same bit for bit. On a GPU, torch has
a kernel that does all of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class _RMSNorm(torch.autograd.Function):
    """y = w x / sqrt(mean(x²) + ε)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True).add_(eps))
        normal = x * scale
        ctx.save_for_backward(normal, weight, scale)
        return weight * normal

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        normal, weight, scale = ctx.saved_tensors
        by_normal = grad * normal
        mean = (by_normal @ weight).div_(normal.shape[-1]).unsqueeze(-1)
        to_x = (grad * weight).addcmul_(normal, mean, value=-1).mul_(scale)
        to_weight = by_normal.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, None


class _Quick:
    """Mixed into the class of a norm: computes the same quicker."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if hidden_states.dtype is self.weight.dtype:
            if hidden_states.is_cuda:
                shape = self.weight.shape
                out = functional.rms_norm(hidden_states, shape, self.weight, self.variance_epsilon)
                # Up to three products read it, each of which would cast it by itself.
                return out.to(torch.get_autocast_dtype("cuda")) if _autocasts() else out
            if hidden_states.device.type == "cpu" and hidden_states.dtype is torch.float32:
                return _RMSNorm.apply(hidden_states, self.weight, self.variance_epsilon)
        return super().forward(hidden_states)


def _autocasts() -> bool:
    return torch.is_autocast_enabled("cuda")


def quicken_norms(model: nn.Module) -> int:
    """Let the RMS norms of a model compute quicker; return how many did.

    A norm is taken for one by what it computes, not by its name: architectures differ in it.
    """
    changed = 0
    for module in model.modules():
        if _is_rms_norm(module):
            module.__class__ = _quick_class(type(module))
            changed += 1
    return changed


def _is_rms_norm(module: nn.Module) -> bool:
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if isinstance(module, _Quick) or eps is None or not isinstance(weight, Tensor):
        return False
    if weight.ndim != 1 or weight.device.type not in ("cpu", "meta"):
        return False
    if weight.dtype is not torch.float32:
        return False
    with torch.no_grad():
        x = torch.linspace(-2.0, 3.0, 2 * len(weight)).view(2, -1)
        # Not its own weight, which may not be there yet.
        weight = torch.linspace(0.5, 1.5, len(weight))
        out = torch.func.functional_call(module, {"weight": weight}, (x,))
        return torch.equal(out, _RMSNorm.apply(x, weight, eps))


@cache
def _quick_class(cls: type) -> type:
    return type(f"Quick{cls.__name__}", (_Quick, cls), {"__module__": __name__})
