"""What is planned for the episodes of an evaluation, by a policy that goes on with its plans."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class EpisodePlans:
    """The last plan of each running episode.

    Args:
        horizon: H, actions of a plan.
        action_dim: A, numbers in an action.
    """

    def __init__(self, horizon: int, action_dim: int) -> None:
        self._none = torch.full((horizon, action_dim), torch.nan)
        self._plans: dict[int, Tensor] = {}

    def of(self, episodes: Sequence[int]) -> Tensor:
        """Return the plans of episodes, `[B, H, A]`; NaN where there is none.

        Args:
            episodes: Their numbers; -1 if none runs there.
        """
        return torch.stack([self._plans.get(number, self._none) for number in episodes])

    def keep(self, episodes: Sequence[int], plans: Tensor) -> None:
        """Take new plans `[B, H, A]`, and forget those of episodes that do not run any more."""
        pairs = zip(episodes, plans, strict=True)
        self._plans = {number: plan.clone() for number, plan in pairs if number >= 0}

    def clear(self) -> None:
        """Forget all plans."""
        self._plans = {}
