"""Categorical distributions: each number of an action is the index of a choice."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from rlinf.models.embodiment.distributions.base import Distribution

_RESOLUTION = float(1 << 40)


class Categorical(Distribution):
    """A choice for each number of an action; indices are int64 and begin at 0.

    A row of logits with a NaN has no choice. Its index is N, which is out of range, so that whoever
    takes the action refuses it.
    """

    __slots__ = ("log_probs",)

    def __init__(self, logits: Tensor) -> None:
        """Normalise the logits.

        Args:
            logits: `[n, D, N]`; those of choices that do not exist are far below the others but
                finite.
        """
        self.log_probs = logits.log_softmax(-1)

    @classmethod
    def stack(cls, steps: Sequence[Categorical]) -> Categorical:
        """See `Distribution.stack`."""
        whole = copy.copy(steps[0])
        whole.log_probs = torch.stack([step.log_probs for step in steps])
        return whole

    def sample(self, noise: Tensor) -> Tensor:
        """See `Distribution.sample`: inverts the distribution function.

        Probabilities are added up as whole numbers: exact in any order, so that this is
        deterministic on every device.
        """
        counts = self.log_probs.double().exp_().mul_(_RESOLUTION).long()
        ends = counts.cumsum(-1)
        uniform = torch.special.ndtr(noise.double()).unsqueeze(-1)
        target = (uniform * ends[..., -1:]).long()
        return self._checked((ends <= target).sum(-1))

    def mode(self) -> Tensor:
        """See `Distribution.mode`: the likeliest choice, the first of equal ones."""
        return self._checked(self.log_probs.argmax(-1))

    def log_prob(self, action: Tensor) -> Tensor:
        """See `Distribution.log_prob`."""
        index = action.clamp(max=self.log_probs.shape[-1] - 1).unsqueeze(-1)
        # A sum of one term; squeezing would give a view, which FSDP must not return.
        return self.log_probs.gather(-1, index).sum(-1)

    def entropy(self) -> Tensor:
        """See `Distribution.entropy`: `-sum p log p`."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def _checked(self, index: Tensor) -> Tensor:
        return index.masked_fill(self.log_probs[..., 0].isnan(), self.log_probs.shape[-1])
