"""How far apart the numbers of rollout and learner are, and when that is too far.

Both compute log-probabilities (and values) of the same samples with the same weights. What is left
is rounding: with other batch sizes and kernels the last bits differ. More than that means that the
ratio of the update does not begin at one, and that something is not what it should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.algorithms.metrics import Metric, MetricMax, MetricSum

GREATEST = 100.0
"""How many times the tolerance of the mean a single number may differ."""

_TOLERANCES = {True: 1e-3, False: 0.05}
"""Mean difference that rounding explains, with and without formats of 16 bits."""


@dataclass(frozen=True)
class Tolerance:
    """What is not too far.

    Attributes:
        mean: of the mean difference, in nats.
        greatest: of the greatest one.
    """

    mean: float
    greatest: float

    @classmethod
    def of(cls, mean: float | None, *formats: torch.dtype) -> Tolerance:
        """Make a tolerance.

        Args:
            mean: of the mean difference; None is what rounding in the formats explains.
            *formats: in which the numbers were computed.
        """
        if mean is None:
            mean = _TOLERANCES[all(torch.finfo(each).bits >= 32 for each in formats)]
        return cls(mean, GREATEST * mean)

    def exceeded(self, numbers: Mapping[str, float]) -> list[str]:
        """Say what is past the tolerance; empty if nothing is.

        Args:
            numbers: as reduced from `logprob_gap` and `value_gap`.
        """
        words = {"logprob": "log-probabilities", "value": "values"}
        found = []
        for what, name in words.items():
            for kind, limit in (("mean", self.mean), ("max", self.greatest)):
                number = numbers.get(f"{what}_{kind}", 0.0)
                if not number <= limit:
                    how = "on average" if kind == "mean" else "at most"
                    found.append(f"{name} differ by {number:.3g} {how} (tolerance {limit:g})")
        return found


def logprob_gap(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> dict[str, Metric]:
    """Return the differences of log-probabilities, in nats.

    Args:
        ours: the learner's, `[*shape]`.
        theirs: those of whoever acted, `[*shape]`.
        mask: which to compare, bool `[*shape]` or its first dimensions; None compares all.

    Returns:
        `logprob_max` and `logprob_mean`, to be merged and reduced over micro-batches and ranks.
    """
    return _gap("logprob", _distance(ours, theirs), mask)


def value_gap(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> dict[str, Metric]:
    """Differences of values, as parts of 1 + |V|: large values have large rounding errors.

    Args:
        ours: the learner's, `[*shape]`.
        theirs: those of whoever acted, `[*shape]`.
        mask: which to compare, bool `[*shape]` or its first dimensions; None compares all.

    Returns:
        `value_max` and `value_mean`.
    """
    scale = 1.0 + theirs.double().abs().nan_to_num(0.0, 0.0, 0.0)
    return _gap("value", _distance(ours, theirs) / scale, mask)


def _distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """|a − b|; zero where both are the same or both NaN, infinite where only one is finite."""
    if ours.shape != theirs.shape:
        raise ValueError(
            f"the learner has {list(ours.shape)} numbers to compare with {list(theirs.shape)}"
        )
    ours, theirs = ours.detach().double(), theirs.detach().to(ours.device).double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    return torch.where(same, 0.0, (ours - theirs).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)


def _gap(name: str, distance: Tensor, mask: Tensor | None) -> dict[str, Metric]:
    if mask is None:
        mask = torch.ones_like(distance, dtype=torch.bool)
    mask = mask.to(distance.device).reshape(*mask.shape, *[1] * (distance.dim() - mask.dim()))
    mask = mask.expand_as(distance)
    total = torch.where(mask, distance, 0.0).sum()
    return {
        f"{name}_max": MetricMax.of(distance, mask),
        f"{name}_mean": MetricSum.of(total, mask.sum().double()),
    }
