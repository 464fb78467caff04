"""Observations shifted and scaled by their running mean and deviation."""

from __future__ import annotations

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
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, dim: int, clip: float = 10.0) -> None:
        """Start as the identity, but for the clipping.

        Args:
            dim: Numbers in an observation.
            clip: Largest absolute value of the result.
        """
        super().__init__(dim)
        self.clip = clip
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def update(
        self,
        values: Tensor,
        mask: Tensor | None = None,
        all_reduce: AllReduce | None = None,
        commit: bool = True,
    ) -> None:
        """Add a batch, as `RunningStats.update`.

        Args:
            values: [*batch, dim].
            mask: Which values count.
            all_reduce: Sums a tensor over ranks.
            commit: Apply the new statistics at once.
        """
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
