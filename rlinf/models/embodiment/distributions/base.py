"""The interface of a distribution of actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor


class Distribution(ABC):
    """Independent distributions of the D = C*A numbers of a chunk of actions, for n samples.

    Everything is per number, in float32: callers sum over actions and chunks as they need.

    All distributions sample with noise that is given to them, standard normal `[n, D]`. So the
    owner of the noise decides what a sample depends on, such as the env and the step alone.

    Attributes:
        has_rsample: Whether there is `rsample`, a sample with gradients in the parameters.
    """

    __slots__ = ()
    has_rsample: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def stack(cls, steps: Sequence[Distribution]) -> Distribution:
        """Return the distributions of T steps as one, which takes and gives `[T, n, D]`.

        Args:
            steps: Those of n samples each.
        """

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """Return a sample without gradients, `[n, D]`.

        Args:
            noise: Standard normal, `[n, D]`.
        """

    def rsample(self, noise: Tensor) -> Tensor:
        """Return a sample with gradients in the parameters, `[n, D]`.

        Args:
            noise: Standard normal, `[n, D]`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no samples with gradients")

    def rsample_with_log_prob(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return `rsample` and the log-probability of each of its numbers, with gradients.

        Args:
            noise: Standard normal, `[n, D]`.
        """
        action = self.rsample(noise)
        return action, self.log_prob(action)

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the action to take without noise, `[n, D]`."""

    @abstractmethod
    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability, or its density, of each number, `[n, D]`.

        Args:
            action: As `sample` or `mode` returned it, `[n, D]`.
        """

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy of each number, `[n, D]`."""
