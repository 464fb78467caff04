"""Distributions of actions, given what a network computes: one interface for all of them."""

from __future__ import annotations

from rlinf.models.embodiment.distributions.base import Distribution
from rlinf.models.embodiment.distributions.categorical import Categorical
from rlinf.models.embodiment.distributions.choice import (
    AUTO,
    DISTRIBUTIONS,
    UnfitDistribution,
    choose_distribution,
)
from rlinf.models.embodiment.distributions.gaussian import Gaussian, SquashedGaussian

__all__ = [
    "AUTO",
    "DISTRIBUTIONS",
    "Categorical",
    "Distribution",
    "Gaussian",
    "SquashedGaussian",
    "UnfitDistribution",
    "choose_distribution",
]
