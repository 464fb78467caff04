"""Scores responses where their reward belongs: in this process, or in processes of its own."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from omegaconf import OmegaConf

from rlinf.algorithms.rewards import get_reward_class
from rlinf.algorithms.rewards.base import Isolation, make_scorer
from rlinf.data.reasoning import Prompt
from rlinf.utils.processes.pool import Outcome, PoolFailed, ProcessPool, ProcessSpec


class Scorer:
    """The reward of a config, ready to be asked.

    Attributes:
        room: responses that may wait or be scored at a time before more are of no use.

    Args:
        cfg: The `reward` section.
    """

    def __init__(self, cfg: Any) -> None:
        self.room = 2 * cfg.num_processes
        self._pool: ProcessPool | None = None
        # Counts as read, here, what the reward reads in its processes.
        name, settings = cfg.reward_type, OmegaConf.to_container(cfg, resolve=True)
        self._name = name
        isolation: Isolation = getattr(get_reward_class(name), "isolation", "strict")
        if isolation == "none":
            self._score = make_scorer(name, settings)
            return
        self._pool = ProcessPool(
            ProcessSpec(
                "rlinf.algorithms.rewards.base:make_scorer",
                (name, settings),
                confined=isolation == "strict",
                memory_mb=cfg.process_memory_mb,
            ),
            processes=cfg.num_processes,
            timeout=cfg.timeout,
        )

    def wait_ready(self) -> str:
        """Wait until responses can be scored; return where and how, in words.

        Raises:
            ValueError: The reward cannot be made; says why.
        """
        if self._pool is None:
            return "in the reward worker itself"
        try:
            return f"in processes of its own: {self._pool.wait_ready()}"
        except PoolFailed as error:
            self.close()
            raise ValueError(f"the reward '{self._name}' cannot be made: {error}") from error

    async def score(self, response: str, prompt: Prompt) -> Outcome:
        """Score a response; whatever goes wrong is an outcome, too."""
        question = response, prompt.answer, prompt.text, prompt.metadata
        if self._pool is not None:
            return _checked(await asyncio.wrap_future(self._pool.submit(*question)))
        begin = time.monotonic()
        try:
            return Outcome("ok", self._score(*question), seconds=time.monotonic() - begin)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            return Outcome("error", message=message, seconds=time.monotonic() - begin)

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.close()


def _checked(outcome: Outcome) -> Outcome:
    """Return an outcome whose value is a score and numbers about it, or none at all.

    A process that runs what a model wrote may say anything.
    """
    if outcome.status != "ok":
        return outcome
    value = outcome.value
    if isinstance(value, dict) and isinstance(value.get("info"), dict):
        numbers = [value.get("score"), *value["info"].values()]
        if all(isinstance(number, float) for number in numbers) and math.isfinite(numbers[0]):
            return outcome
    message = f"the reward process answered with {str(value)[:200]}, which is no score"
    return Outcome("error", message=message, seconds=outcome.seconds)
