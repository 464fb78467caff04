"""The reward of Search-R1: does the answer match exactly, after normalisation?"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rlinf.algorithms.rewards import register_reward
from rlinf.algorithms.rewards.base import Isolation, Reward, tagged

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

MANY_TAGS = 10
"""More answers than this look like guessing, and the score is a quarter."""


class SearchR1Reward(Reward):
    """1 if the last `<answer>` equals one of the right answers; 0 otherwise."""

    isolation: ClassVar[Isolation] = "none"

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> tuple[float, Mapping[str, float]]:
        """Compare the last answer with all right ones.

        Args:
            response: Text with `<answer>...</answer>`.
            answer: A text, a list of texts, or a mapping with such a list as `target`.
            prompt: Not used.
            metadata: Not used.
        """
        found = tagged(response, "answer")
        if not found:
            return 0.0, {"answered": 0.0}
        right = {normalise(text) for text in right_answers(answer)}
        score = float(normalise(found[-1]) in right)
        if len(found) > MANY_TAGS:
            score /= 4
        return score, {"answered": 1.0}


def right_answers(answer: Any) -> list[str]:
    """Return the right answers of a record.

    Raises:
        ValueError: There is none.
    """
    if isinstance(answer, Mapping):
        answer = answer.get("target")
    if isinstance(answer, str):
        return [answer]
    if isinstance(answer, Sequence) and answer:
        return [str(item) for item in answer]
    raise ValueError(
        f"the answer is {answer!r}; it must be a text, a list of texts, or a mapping with 'target'"
    )


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and extra spaces."""
    words = _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION))
    return " ".join(words.split())


register_reward("searchr1", SearchR1Reward)
