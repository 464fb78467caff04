"""A reward that costs nothing and differs within groups, for models that know nothing.

Named by RLINF_EXT_MODULE, it is `reward_type: parity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlinf.algorithms.rewards import register_reward
from rlinf.algorithms.rewards.base import Isolation, Reward


class ParityReward(Reward):
    """Whether the code points of a response add up to an odd number."""

    isolation: ClassVar[Isolation] = "none"

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> float:
        """1 for an odd sum."""
        return float(sum(map(ord, response)) % 2)


def register() -> None:
    """Make the reward known; called in the driver and in every worker."""
    register_reward("parity", ParityReward)
