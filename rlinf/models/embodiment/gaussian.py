"""Log-probability and entropy of diagonal Gaussians, plain and squashed by tanh.

Everything is per dimension, in float32: callers sum over actions and chunks as they need.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_ENTROPY_OF_UNIT = 0.5 + _HALF_LOG_TWO_PI
_LOG_TWO = math.log(2.0)
_NODES = 16


def log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Returns `-((a - mean) / std)^2 / 2 - log std - log(2 pi) / 2`.

    Args:
        mean: [n, D].
        log_std: [D] or [n, D].
        action: [n, D].

    Returns:
        [n, D].
    """
    log_precision = -log_std
    z = (action - mean) * log_precision.exp()
    return torch.addcmul(log_precision - _HALF_LOG_TWO_PI, z, z, value=-0.5)


def entropy(log_std: Tensor, samples: int) -> Tensor:
    """Returns `log std + log(2 pi e) / 2`, [samples, D].

    Args:
        log_std: [D] or [samples, D].
        samples: Rows of the result.
    """
    own = log_std + _ENTROPY_OF_UNIT
    return own if own.dim() == 2 else own.repeat(samples, 1)


def log_slope(u: Tensor) -> Tensor:
    """Returns `log(1 - tanh(u)^2)` without loss of precision where tanh is flat."""
    return 2.0 * (_LOG_TWO - u - functional.softplus(-2.0 * u))


def squashed_entropy(mean: Tensor, log_std: Tensor) -> Tensor:
    """Returns the entropy of tanh(u) for Gaussian u: H(u) + E[log(1 - tanh(u)^2)].

    The expectation is a Gauss-Hermite sum, so that the result is deterministic and has a gradient
    in mean and deviation.

    Args:
        mean: [n, D].
        log_std: [D] or [n, D].

    Returns:
        [n, D].
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    total = entropy(log_std, len(mean))
    std = log_std.exp()
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        total = total + weight * log_slope(mean + node * std)
    return total
