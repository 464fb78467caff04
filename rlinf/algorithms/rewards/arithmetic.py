"""The reward of the `arithmetic` task: is the sum at the end of the response right?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlinf.algorithms.rewards import register_reward
from rlinf.algorithms.rewards.base import Isolation, Reward


class ArithmeticReward(Reward):
    """1 if what follows the last `;` is the sum, digit for digit; 0 otherwise."""

    isolation: ClassVar[Isolation] = "none"

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> tuple[float, Mapping[str, float]]:
        """Compare the last field of the response with the sum."""
        found = response.rpartition(";")[2]
        return float(found == str(answer)), {"answered": float(found.isdecimal())}


register_reward("arithmetic", ArithmeticReward)
