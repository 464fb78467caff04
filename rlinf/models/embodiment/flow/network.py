"""Small networks of a flow: velocity, and deviation of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.layers import MLP, POLICY_GAIN

_TIME_DIM = 16
_PERIODS = 0.1, 4.0


def time_embedding(
    time: Tensor, dim: int = _TIME_DIM, periods: tuple[float, float] = _PERIODS
) -> Tensor:
    """Return sines and cosines of times, `[n, dim]` float32.

    Args:
        time: From 0 to 1, `[n]`.
        dim: Even.
        periods: Shortest and longest; others are between them, evenly on a log scale.
    """
    # Angles of short periods are hundreds of turns: single precision would lose their phase.
    share = torch.linspace(0.0, 1.0, dim // 2, device=time.device, dtype=torch.float64)
    shortest, longest = periods
    angles = 2.0 * math.pi * time[:, None] / (shortest * (longest / shortest) ** share)
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


class VelocityNet(nn.Module):
    """A multilayer perceptron of features, state of the flow, and time."""

    def __init__(
        self, feature_dim: int, width: int, hidden_sizes: Sequence[int], activation: str
    ) -> None:
        """Make the layers.

        Args:
            feature_dim: F, numbers in the features of an observation.
            width: D, numbers in the state of the flow.
            hidden_sizes: Units of each hidden layer.
            activation: Function between layers.
        """
        super().__init__()
        self.layers = MLP(
            feature_dim + width + _TIME_DIM, hidden_sizes, width, activation, POLICY_GAIN
        )

    def forward(self, features: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Return velocities `[n, D]` for features `[n, F]`, x `[n, D]` and times `[n]`."""
        return self.layers(torch.cat([features, x.to(features.dtype), _embed(time, features)], 1))


class NoiseNet(nn.Module):
    """Deviations between two bounds, as a multilayer perceptron of features, time and maybe x."""

    def __init__(
        self,
        feature_dim: int,
        width: int,
        hidden_sizes: Sequence[int],
        activation: str,
        bounds: tuple[float, float],
        sees_x: bool,
    ) -> None:
        """Make the layers.

        Args:
            feature_dim: F, numbers in the features of an observation.
            width: D, numbers in the state of the flow.
            hidden_sizes: Units of each hidden layer.
            activation: Function between layers.
            bounds: Smallest and greatest deviation; it begins at their geometric mean.
            sees_x: Whether the state of the flow is an input.
        """
        super().__init__()
        inputs = feature_dim + _TIME_DIM + (width if sees_x else 0)
        self.layers = MLP(inputs, hidden_sizes, width, activation, POLICY_GAIN)
        self._low, self._high = (math.log(bound) for bound in bounds)
        self._sees_x = sees_x

    def forward(self, features: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Return deviations `[n, D]` float32; arguments as in `VelocityNet`."""
        parts = [features, _embed(time, features)]
        if self._sees_x:
            parts.append(x.to(features.dtype))
        share = self.layers(torch.cat(parts, 1)).float().sigmoid()
        return (self._low + (self._high - self._low) * share).exp()


def _embed(time: Tensor, features: Tensor) -> Tensor:
    return time_embedding(time).to(features.dtype)
