"""Layers that the small policies share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


def _elu(x: Tensor) -> Tensor:
    return functional.elu(x, inplace=True)


# In place where autograd needs only the result.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "elu": _elu,
    "silu": functional.silu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation function, which may overwrite its argument.

    Args:
        name: tanh, relu, elu or silu.

    Raises:
        ValueError: Unknown name.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(f"unknown activation '{name}'; known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


class MLP(nn.Module):
    """Linear layers with activations between them, and optionally a linear head."""

    def __init__(
        self,
        in_dim: int,
        hidden_sizes: Sequence[int],
        out_dim: int | None,
        act: str = "tanh",
        out_gain: float | None = None,
    ) -> None:
        """Make the layers.

        Args:
            in_dim: Numbers in an input.
            hidden_sizes: Units of each hidden layer; may be empty.
            out_dim: Numbers in an output; None ends with the last hidden layer, activated.
            act: Activation of the hidden layers.
            out_gain: Orthogonal initialisation with zero bias, gain sqrt(2) in hidden layers and
                this gain in the head; None keeps torch's initialisation.
        """
        super().__init__()
        sizes = [in_dim, *hidden_sizes]
        self.act = activation(act)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        head = None if out_dim is None else nn.Linear(sizes[-1], out_dim)
        self.register_module("head", head)
        if out_gain is not None:
            for layer in self.hidden:
                orthogonal_(layer, HIDDEN_GAIN)
            if self.head is not None:
                orthogonal_(self.head, out_gain)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, out_dim] for x [n, in_dim], in the number format of the weights."""
        # Looked up in the plain dicts: with a handful of rows, attribute access and module calls
        # take about as long as the arithmetic.
        modules, act = self._modules, self.act
        for layer in modules["hidden"]._modules.values():
            x = act(_linear(layer, x))
        head = modules["head"]
        return x if head is None else _linear(head, x)


def _linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`, by a shorter way if the layer is a plain one that nobody hooks."""
    if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return layer(x.to(layer.weight.dtype))
    parameters = layer._parameters
    weight = parameters["weight"]
    if x.dtype is not weight.dtype:
        x = x.to(weight.dtype)
    return functional.linear(x, weight, parameters["bias"])


@torch.no_grad()
def orthogonal_(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Initialise a layer with an orthogonal weight of the given gain and zero bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        layer.bias.zero_()
