"""Several networks of the same shape, each layer of all of them one batched product.

Shapes: Q networks, n samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.deferred import initialise
from rlinf.models.embodiment.layers import HIDDEN_GAIN, VALUE_GAIN, activation


def _draw_linear(weight: Tensor) -> None:
    """Draw a weight `[in, out]` as `nn.Linear` draws its own, which lies the other way round."""
    drawn = torch.empty_like(weight.t(), memory_format=torch.contiguous_format)
    weight.copy_(nn.init.kaiming_uniform_(drawn, a=math.sqrt(5)).t())


def _draw_orthogonal(weight: Tensor, gain: float) -> None:
    """Draw an orthogonal weight `[in, out]`, as one of `nn.Linear`."""
    drawn = torch.empty_like(weight.t(), memory_format=torch.contiguous_format)
    weight.copy_(nn.init.orthogonal_(drawn, gain).t())


class EnsembleLinear(nn.Module):
    """Q linear layers: `y_q = x_q W_q + b_q`.

    Attributes:
        weight: `[Q, in, out]`.
        bias: `[Q, 1, out]`.
    """

    def __init__(self, heads: int, in_dim: int, out_dim: int, gain: float | None = None) -> None:
        """Initialise each layer as `nn.Linear` does, one after the other.

        Args:
            heads: Q.
            in_dim: Numbers in an input.
            out_dim: Numbers in an output.
            gain: Orthogonal weights of this gain and zero biases instead.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, in_dim, out_dim))
        self.bias = nn.Parameter(torch.empty(heads, 1, out_dim))
        bound = 1.0 / math.sqrt(in_dim)
        for head in range(heads):
            initialise(self.weight[head], _draw_linear)
            initialise(self.bias[head], nn.init.uniform_, a=-bound, b=bound)
        if gain is not None:
            for head in range(heads):
                initialise(self.weight[head], _draw_orthogonal, gain=gain)
                initialise(self.bias[head], nn.init.zeros_)

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """Return `[Q, n, out]` for `[Q, n, in]`.

        Args:
            x: Inputs of each layer.
            frozen: Give no gradients to the weights.
        """
        weight, bias = self.weight, self.bias
        if frozen:
            weight, bias = weight.detach(), bias.detach()
        return torch.baddbmm(bias, x.to(weight.dtype), weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation with weights of their own for each of Q networks."""

    def __init__(self, heads: int, dim: int) -> None:
        """Start as plain normalisation.

        Args:
            heads: Q.
            dim: Units that are normalised over.
        """
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.ones(heads, 1, dim))
        self.bias = nn.Parameter(torch.zeros(heads, 1, dim))

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """Return `[Q, n, dim]` for `[Q, n, dim]`; `frozen` as in `EnsembleLinear`."""
        weight, bias = self.weight, self.bias
        if frozen:
            weight, bias = weight.detach(), bias.detach()
        return torch.addcmul(bias, functional.layer_norm(x, (self.dim,)), weight)


class Ensemble(nn.Module):
    """Layers of Q networks from features to values; how they are normalised is for others to say.

    Attributes:
        heads: Q, number of networks.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_sizes: Sequence[int],
        heads: int,
        out_dim: int,
        act: str,
        orthogonal_init: bool,
        norms: nn.ModuleList | None,
    ) -> None:
        """Make the layers.

        Args:
            in_dim: Numbers in an input.
            hidden_sizes: Units of each hidden layer.
            heads: Q, number of networks.
            out_dim: Values that each network gives; 1 gives a number and no dimension.
            act: Activation of the hidden layers.
            orthogonal_init: Start from orthogonal weights; else as `nn.Linear` does.
            norms: What normalises the layers.
        """
        super().__init__()
        self.heads, self.out_dim, self.act = heads, out_dim, activation(act)
        hidden_gain, gain = (HIDDEN_GAIN, VALUE_GAIN) if orthogonal_init else (None, None)
        sizes = [in_dim, *hidden_sizes]
        self.hidden = nn.ModuleList(
            EnsembleLinear(heads, a, b, hidden_gain) for a, b in pairwise(sizes)
        )
        self.norms = norms
        self.head = EnsembleLinear(heads, sizes[-1], out_dim, gain)

    def values(self, x: Tensor, frozen: bool) -> Tensor:
        """Return `[Q, n]`, or `[Q, n, out_dim]` if that is not 1, float32, of the last layer."""
        values = self.head(x, frozen).float()
        # A sum of one term; squeezing would give a view, which FSDP must not return.
        return values.sum(-1) if self.out_dim == 1 else values


class QEnsemble(Ensemble):
    """Q networks from features to values."""

    def __init__(
        self,
        in_dim: int,
        hidden_sizes: Sequence[int],
        heads: int = 2,
        out_dim: int = 1,
        act: str = "relu",
        layer_norm: bool = False,
        orthogonal_init: bool = False,
    ) -> None:
        """Make the layers; see `Ensemble`.

        Args:
            in_dim: See there.
            hidden_sizes: See there.
            heads: See there.
            out_dim: See there.
            act: See there.
            layer_norm: Normalise each hidden layer over its units, before the activation.
            orthogonal_init: See there.
        """
        norms = None
        if layer_norm:
            norms = nn.ModuleList(EnsembleLayerNorm(heads, size) for size in hidden_sizes)
        super().__init__(in_dim, hidden_sizes, heads, out_dim, act, orthogonal_init, norms)

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """Return `[Q, n]`, or `[Q, n, out_dim]` if that is not 1, float32.

        Args:
            x: Inputs of all networks, `[n, in]`.
            frozen: Give gradients to the inputs, and none to the weights.
        """
        x = x.expand(self.heads, *x.shape)
        for index, layer in enumerate(self.hidden):
            x = layer(x, frozen)
            if self.norms is not None:
                x = self.norms[index](x, frozen)
            x = self.act(x)
        return self.values(x, frozen)
