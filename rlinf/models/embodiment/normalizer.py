"""Observations shifted and scaled by their running mean and deviation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlinf.utils.running_stats import AllReduce, RunningStats

EPSILON = 1e-8


class ObsNormalizer(RunningStats):
    """Maps x to `clip((x - mean) / sqrt(var + eps))`, with the statistics last committed.

    What is applied (`shift`, `scale`) and what is collected (`mean`, `var`, `count`) are separate
    buffers, so that statistics can be collected at any time and take effect at the right one.

    Attributes:
        shift: The mean that is applied, [dim] float32.
        scale: One over the deviation that is applied, [dim] float32.
        clip: Largest absolute value of the result.
        keeps_first: Only the first batch counts.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, dim: int, clip: float = 10.0, keeps_first: bool = False) -> None:
        """Start as the identity, but for the clipping.

        Args:
            dim: Numbers in an observation.
            clip: Largest absolute value of the result.
            keeps_first: Let only the first batch count, the demonstrations as a rule: what was
                learned from these has no meaning with other statistics.
        """
        super().__init__(dim)
        self.clip, self.keeps_first = clip, keeps_first
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def update(
        self,
        values: Tensor,
        mask: Tensor | None = None,
        all_reduce: AllReduce | None = None,
        commit: bool = True,
    ) -> None:
        """Add a batch, as `RunningStats.update`, unless there was one and `keeps_first`.

        Args:
            values: [*batch, dim].
            mask: Which values count.
            all_reduce: Sums a tensor over ranks.
            commit: Apply the new statistics at once.
        """
        if self.keeps_first and self.count > 0:
            return
        super().update(values, mask, all_reduce)
        if commit:
            self.commit()

    @torch.no_grad()
    def commit(self) -> None:
        """Apply the statistics collected so far from now on."""
        self.shift.copy_(self.mean)
        self.scale.copy_((self.var + EPSILON).rsqrt())

    def forward(self, values: Tensor) -> Tensor:
        """Return the normalised values, [*batch, dim] float32.

        Args:
            values: [*batch, dim] float32.
        """
        return (values - self.shift).mul_(self.scale).clamp_(-self.clip, self.clip)


class NormalizedStates:
    """What a policy with an `ObsNormalizer` of its `states` does to collect statistics.

    Attributes:
        normalizer: Normalises `states`; None if switched off or without states.
    """

    normalizer: ObsNormalizer | None

    @property
    def has_statistics(self) -> bool:
        """See `BasePolicy.has_statistics`."""
        return self.normalizer is not None and bool(self.normalizer.count > 0)

    def update_normalizer(
        self,
        observations: Mapping[str, Any],
        mask: Tensor | None = None,
        all_reduce: AllReduce | None = None,
        commit: bool = True,
    ) -> None:
        """See `BasePolicy.update_normalizer`; uses `states`."""
        if self.normalizer is not None:
            states = torch.as_tensor(observations["states"])
            self.normalizer.update(states, mask, all_reduce, commit)

    def commit_normalizer(self) -> None:
        """See `BasePolicy.commit_normalizer`."""
        if self.normalizer is not None:
            self.normalizer.commit()
