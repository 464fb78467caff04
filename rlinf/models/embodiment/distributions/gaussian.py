"""Diagonal Gaussians, plain and squashed by tanh."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlinf.models.embodiment.distributions.base import Distribution

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_ENTROPY_OF_UNIT = 0.5 + _HALF_LOG_TWO_PI
_LOG_TWO = math.log(2.0)
_NODES = 16


class Gaussian(Distribution):
    """A diagonal Gaussian."""

    __slots__ = ("log_std", "mean")
    has_rsample = True

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        """Keep the parameters.

        Args:
            mean: `[n, D]`.
            log_std: Log of the deviation, `[D]` or `[n, D]`.
        """
        self.mean = mean
        self.log_std = log_std

    @classmethod
    def stack(cls, steps: Sequence[Gaussian]) -> Gaussian:
        """See `Distribution.stack`."""
        whole = copy.copy(steps[0])
        whole.mean = torch.stack([step.mean for step in steps])
        whole.log_std = torch.stack([step.log_std.expand_as(step.mean) for step in steps])
        return whole

    def rsample(self, noise: Tensor) -> Tensor:
        """See `Distribution.rsample`: `mean + std * noise`."""
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def rsample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """See `Distribution.rsample_with_log_prob`: `(a - mean) / std` is the noise itself."""
        density = torch.addcmul(-self.log_std - _HALF_LOG_TWO_PI, noise, noise, value=-0.5)
        return self.rsample(noise), density

    def sample(self, noise: Tensor) -> Tensor:
        """See `Distribution.sample`."""
        return self.rsample(noise).detach()

    def mode(self) -> Tensor:
        """See `Distribution.mode`: the mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """See `Distribution.log_prob`: `-((a - mean) / std)^2 / 2 - log std - log(2 pi) / 2`."""
        log_precision = -self.log_std
        z = (action - self.mean) * log_precision.exp()
        return torch.addcmul(log_precision - _HALF_LOG_TWO_PI, z, z, value=-0.5)

    def entropy(self) -> Tensor:
        """See `Distribution.entropy`: `log std + log(2 pi e) / 2`."""
        own = self.log_std + _ENTROPY_OF_UNIT
        return own if own.dim() > 1 else own.repeat(len(self.mean), 1)


class SquashedGaussian(Gaussian):
    """The distribution of `scale * tanh(u)` for Gaussian u.

    Actions are handed over as u, so that no inverse of tanh is needed: `sample`, `rsample` and
    `mode` return u and `log_prob` takes it. The log-probability is that of the squashed action.
    """

    __slots__ = ("log_scale",)

    def __init__(self, mean: Tensor, log_std: Tensor, log_scale: Tensor | float) -> None:
        """Keep the parameters.

        Args:
            mean: Of u, `[n, D]`.
            log_std: Log of the deviation of u, `[D]` or `[n, D]`.
            log_scale: Log of the scale, `[D]` or one for all.
        """
        super().__init__(mean, log_std)
        self.log_scale = log_scale

    def log_prob(self, action: Tensor) -> Tensor:
        """See `Distribution.log_prob`: `log N(u) - log(1 - tanh(u)^2) - log scale`."""
        return super().log_prob(action) - log_slope(action) - self.log_scale

    def rsample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """See `Distribution.rsample_with_log_prob`."""
        action, density = super().rsample_with_log_prob(noise)
        return action, density - log_slope(action) - self.log_scale

    def entropy(self) -> Tensor:
        """See `Distribution.entropy`: `H(u) + E[log(1 - tanh(u)^2)] + log scale`.

        The expectation is a Gauss-Hermite sum, so that the result is deterministic and has a
        gradient in mean and deviation.
        """
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        weights = weights / weights.sum()
        total = super().entropy()
        std = self.log_std.exp()
        for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            total = total + weight * log_slope(self.mean + node * std)
        return total + self.log_scale


def log_slope(u: Tensor) -> Tensor:
    """Return `log(1 - tanh(u)^2)` without loss of precision where tanh is flat."""
    return 2.0 * (_LOG_TWO - u - functional.softplus(-2.0 * u))
