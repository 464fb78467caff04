"""A reward that does what the response says, however bad; `register` makes it known."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rlinf.algorithms.rewards import register_reward, reward_registry
from rlinf.algorithms.rewards.base import Reward


class ObedientReward(Reward):
    """Waits, crashes, prints or fails when it is told to; otherwise the response is the score."""

    def score(self, response, answer, *, prompt="", metadata={}):  # noqa: B006
        if response == "wait":
            while not Path(answer).exists():
                time.sleep(0.01)
            return 0.0
        if response == "late":
            raise TimeoutError("gave up")
        if response == "crash":
            os._exit(3)
        if response == "print":
            print("x" * (4 << 20))
        return float(response), {"length": len(response)}


class ImpossibleReward(Reward):
    """Cannot be made."""

    def __init__(self, cfg):
        raise LookupError("the package is not installed")


def register() -> None:
    for name, cls in (("obedient", ObedientReward), ("impossible", ImpossibleReward)):
        if name not in reward_registry:
            register_reward(name, cls)
