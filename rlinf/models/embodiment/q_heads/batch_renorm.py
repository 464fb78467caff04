"""Several networks whose layers are normalised over the batch, as CrossQ needs them.

Shapes: Q networks, n samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.q_heads.ensemble import Ensemble

MOMENTUM = 0.99
"""Share of the running statistics that a batch leaves as it is."""
EPSILON = 1e-3
MOST_SCALE, MOST_SHIFT = 3.0, 5.0
WARM_UP = 100_000
"""Batches that are normalised by their own statistics alone."""


class EnsembleBatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe, 2017) with statistics of their own for each of Q networks.

    A batch is normalised by its mean `m` and deviation `s`, then brought to where the running
    statistics `M` and `S` would have put it, within limits and without gradients:

        y = (x - m) / s * r + d,    r = clip(s / S, 1/3, 3),    d = clip((m - M) / S, -5, 5)

    In the first `WARM_UP` batches r = 1 and d = 0.
    """

    mean: Tensor
    var: Tensor
    batches: Tensor

    def __init__(self, heads: int, dim: int) -> None:
        """Start as plain normalisation.

        Args:
            heads: Q.
            dim: Units, each normalised over the batch.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, dim))
        self.bias = nn.Parameter(torch.zeros(heads, 1, dim))
        self.register_buffer("mean", torch.zeros(heads, 1, dim))
        self.register_buffer("var", torch.ones(heads, 1, dim))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, frozen: bool = False, learns: bool = False) -> Tensor:
        """Return `[Q, n, dim]` for `[Q, n, dim]`.

        Args:
            x: Inputs.
            frozen: Give no gradients to the weights.
            learns: Normalise by this batch, and let the running statistics know it; else by the
                running statistics.
        """
        if learns:
            normal = self._renormalise(x)
        else:
            normal = (x - self.mean) * (self.var + EPSILON).rsqrt()
        weight, bias = self.weight, self.bias
        if frozen:
            weight, bias = weight.detach(), bias.detach()
        return torch.addcmul(bias, normal, weight)

    def _renormalise(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        deviation = (var + EPSILON).sqrt()
        with torch.no_grad():
            running = (self.var + EPSILON).sqrt()
            warm = self.batches >= WARM_UP
            scale = (deviation / running).clamp(1 / MOST_SCALE, MOST_SCALE)
            shift = ((mean - self.mean) / running).clamp(-MOST_SHIFT, MOST_SHIFT)
            scale, shift = torch.where(warm, scale, 1.0), torch.where(warm, shift, 0.0)
            self.mean.lerp_(mean, 1 - MOMENTUM)
            self.var.lerp_(var, 1 - MOMENTUM)
            self.batches += 1
        return (x - mean) / deviation * scale + shift


class CrossQEnsemble(Ensemble):
    """Q networks from features to values, normalised before and after each hidden layer."""

    def __init__(
        self,
        in_dim: int,
        hidden_sizes: Sequence[int],
        heads: int = 2,
        act: str = "relu",
        orthogonal_init: bool = False,
    ) -> None:
        """Make the layers; see `Ensemble`."""
        norms = nn.ModuleList(EnsembleBatchRenorm(heads, n) for n in (in_dim, *hidden_sizes))
        super().__init__(in_dim, hidden_sizes, heads, 1, act, orthogonal_init, norms)

    def forward(self, x: Tensor, frozen: bool = False, learns: bool = False) -> Tensor:
        """Return `[Q, n]` float32.

        Args:
            x: Inputs of all networks, `[n, in]`.
            frozen: Give gradients to the inputs, and none to the weights.
            learns: See `EnsembleBatchRenorm`.
        """
        x = self.norms[0](x.expand(self.heads, *x.shape), frozen, learns)
        for layer, norm in zip(self.hidden, self.norms[1:], strict=True):
            x = norm(self.act(layer(x, frozen)), frozen, learns)
        return self.values(x, frozen)
