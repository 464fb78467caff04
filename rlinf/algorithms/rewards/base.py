"""What a reward is: a class whose `score` says how good one response is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

Isolation = Literal["none", "strict", "process"]


class Reward:
    """Base class of rewards; register subclasses with `register_reward`.

    A reward is a pure function of its arguments. It need not be safe: it may hang, crash or print,
    and costs its own sample only.

    Attributes:
        isolation: Where `score` runs. "strict": in a process that cannot reach the network, start
            processes, signal others or change files; right for whatever evaluates text of a model.
            "process": in a process of its own, nothing more; for rewards that ask a server or start
            programs. "none": in the reward worker itself; for comparisons of short texts only,
            since nothing ends it when it hangs.
        about: What the log should say of this reward, once it is made.

    Args:
        cfg: The `reward` section, with the keys that were registered for this reward.
    """

    isolation: ClassVar[Isolation] = "strict"
    about: str = ""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> float | tuple[float, Mapping[str, float]]:
        """Say how good a response is.

        Args:
            response: Text of the response, without special tokens.
            answer: `Prompt.answer`.
            prompt: `Prompt.text`.
            metadata: `Prompt.metadata`.

        Returns:
            The score, 0 for a worthless and 1 for a perfect response where there is no reason for
            another range; and numbers about it, if there are any, whose means become metrics.

        Raises:
            TimeoutError: It takes too long; counted as a timeout.
        """
        raise NotImplementedError


Scorer = Callable[[str, Any, str, Mapping[str, Any]], dict[str, Any]]


def make_scorer(reward_type: str, settings: Mapping[str, Any]) -> Scorer:
    """Make the function that a reward process calls for each sample.

    Args:
        reward_type: A registered name.
        settings: The `reward` section, plain data.

    Returns:
        `scorer(response, answer, prompt, metadata)`, which gives `score` and `info`.
    """
    from rlinf.algorithms.rewards import get_reward_class
    from rlinf.config.plugins import load_extension

    load_extension()
    reward = get_reward_class(reward_type)(SimpleNamespace(**settings))

    def scorer(
        response: str, answer: Any, prompt: str, metadata: Mapping[str, Any]
    ) -> dict[str, Any]:
        found = reward.score(response, answer, prompt=prompt, metadata=metadata)
        score, info = found if isinstance(found, tuple) else (found, {})
        score = float(score)
        if not math.isfinite(score):
            raise ValueError(f"the reward '{reward_type}' scored {score}; it must be finite")
        return {"score": score, "info": {name: float(value) for name, value in info.items()}}

    scorer.about = getattr(reward, "about", "")  # type: ignore[attr-defined]
    return scorer


def tagged(text: str, tag: str) -> list[str]:
    """Return what is inside each `<tag>...</tag>`, stripped; of nested ones the innermost."""
    pattern = rf"<{re.escape(tag)}>((?:(?!<{re.escape(tag)}>).)*?)</{re.escape(tag)}>"
    return [found.strip() for found in re.findall(pattern, text, re.DOTALL)]
