"""The reward of mathematics: is the final answer equal to the right one, as mathematics?"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from rlinf.algorithms.rewards import register_reward
from rlinf.algorithms.rewards.base import Reward
from rlinf.utils.extras import install_hint


class MathReward(Reward):
    r"""1 if math-verify finds the response equal to the answer; 0 otherwise.

    Of a response the last `\boxed{...}` counts, otherwise the last formula or number. math-verify
    ends what takes too long by SIGALRM, which works in the main thread of a process only.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        try:
            import math_verify
            from math_verify.errors import TimeoutException
        except ImportError as error:
            raise ValueError(
                f"the reward 'math' needs the package math-verify: {install_hint('reasoning')}"
            ) from error
        self._verify, self._late = math_verify, TimeoutException
        self._forms = [
            math_verify.LatexExtractionConfig(boxed_match_priority=0),
            math_verify.ExprExtractionConfig(),
        ]
        # Three steps share the time; alarms are whole seconds.
        self._seconds = max(1, int(cfg.timeout / 3))
        self._known: dict[str, list[Any]] = {}

    def score(
        self, response: str, answer: Any, *, prompt: str = "", metadata: Mapping[str, Any] = {}
    ) -> tuple[float, Mapping[str, float]]:
        """Parse both sides and compare them.

        Args:
            response: Text of the response.
            answer: LaTeX, a number, or a worked solution that ends in `#### answer`.
            prompt: Not used.
            metadata: Not used.

        Raises:
            TimeoutError: Parsing or comparing takes too long.
            ValueError: The answer is no mathematics.
            RuntimeError: This is not the main thread of a process.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("math-verify works in the main thread of a process only")
        try:
            gold = self._gold(str(answer))
            boxed = last_boxed(response)
            found = self._parse(response if boxed is None else boxed)
            right = bool(found) and self._equal(gold, found)
        except self._late as error:
            raise TimeoutError(f"math-verify: {error}") from None
        return float(right), {"answered": float(bool(found))}

    def _gold(self, answer: str) -> list[Any]:
        if answer not in self._known:
            text = answer.rpartition("####")[2].strip()
            plain = not any(mark in text for mark in ("$", "\\boxed", "\\[", "\\("))
            parsed = self._parse(f"\\boxed{{{text}}}" if plain else text)
            if not parsed:
                raise ValueError(f"the right answer {answer!r} cannot be read as mathematics")
            if len(self._known) > 4096:
                self._known.clear()
            self._known[answer] = parsed
        return self._known[answer]

    def _parse(self, text: str) -> list[Any]:
        try:
            return self._verify.parse(
                text,
                extraction_config=self._forms,
                parsing_timeout=self._seconds,
                raise_on_error=True,
            )
        except Exception:
            # Whatever the parser chokes on is no answer.
            return []

    def _equal(self, gold: list[Any], found: list[Any]) -> bool:
        try:
            return self._verify.verify(
                gold, found, timeout_seconds=self._seconds, raise_on_error=True
            )
        except Exception:
            # What cannot be compared is not equal.
            return False


def last_boxed(text: str) -> str | None:
    r"""Return the last `\boxed{...}` of a text, braces matched; None if there is none."""
    begin = text.rfind("\\boxed{")
    depth = 0
    for end in range(begin, len(text)) if begin >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0 and text[end] == "}":
            return text[begin : end + 1]
    return None


register_reward("math", MathReward)
