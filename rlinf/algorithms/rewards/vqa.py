"""The reward of visual questions: a weighted sum of the right answer and the right form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlinf.algorithms.rewards import register_reward
from rlinf.algorithms.rewards.base import Isolation, Reward, tagged
from rlinf.algorithms.rewards.searchr1 import normalise, right_answers


class VQAReward(Reward):
    """`qa_weight` · right + `think_weight` · thinks once + `answer_weight` · answers once."""

    isolation: ClassVar[Isolation] = "none"

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> tuple[float, Mapping[str, float]]:
        """Compare the answer, and look at the form.

        Args:
            response: Text such as `<think>...</think><answer>B</answer>`.
            answer: A text, a number, or a list of right ones.
            prompt: Not used.
            metadata: Not used.
        """
        answers = tagged(response, "answer")
        parts = {
            "qa_accuracy": float(bool(answers) and is_right(answers[-1], answer)),
            "think_format": float(_once(response, "think") and _thinks_first(response)),
            "answer_format": float(_once(response, "answer")),
        }
        weights = (self.cfg.qa_weight, self.cfg.think_weight, self.cfg.answer_weight)
        score = sum(w * part for w, part in zip(weights, parts.values(), strict=True))
        return score, parts


def is_right(found: str, answer: Any) -> bool:
    """Return whether a text is one of the right answers, as a number, a choice or text."""
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    for right in right_answers(answer):
        number, wanted = _number(found), _number(right)
        if number is not None and wanted is not None:
            if abs(number - wanted) <= 1e-6 * max(1.0, abs(wanted)):
                return True
        elif _choice(found) == _choice(right) or normalise(found) == normalise(right) != "":
            return True
    return False


def _choice(text: str) -> str:
    """`A` of `A`, `(a)`, `A.`: choices are letters, whatever surrounds them."""
    letters = text.strip().strip("().:").strip()
    return letters.upper() if len(letters) == 1 else text


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").strip())
    except ValueError:
        return None


def _once(text: str, tag: str) -> bool:
    return text.count(f"<{tag}>") == text.count(f"</{tag}>") == len(tagged(text, tag)) == 1


def _thinks_first(text: str) -> bool:
    return "<answer>" not in text or text.index("</think>") < text.index("<answer>")


register_reward("vqa", VQAReward)
