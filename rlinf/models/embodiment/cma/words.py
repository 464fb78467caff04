"""Instructions as numbers of words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

PADDING = 0
"""What stands after the last word; words are numbered from 1."""


class WordEncoder:
    """Makes numbers of instructions; each text is looked at once.

    Text is cut at everything that is no letter and no digit, and case does not matter.

    Args:
        words: All words that instructions may have.
        length: W, numbers of an instruction; shorter ones are padded at the end.
    """

    def __init__(self, words: Sequence[str], length: int) -> None:
        words = [word.lower() for word in words]
        twice = sorted({word for word in words if words.count(word) > 1})
        if twice:
            raise ValueError(
                f"model.words has {', '.join(twice)} more than once: list each word once"
            )
        self._numbers = {word: number for number, word in enumerate(words, start=1)}
        self._length = length
        self._known: dict[str, list[int]] = {}

    def __call__(self, texts: Sequence[str] | None) -> Tensor:
        """Return the words of instructions, int64 `[B, W]`.

        Args:
            texts: `task_descriptions` of observations.

        Raises:
            ValueError: There are none, or one is too long, empty, or has an unknown word.
        """
        if texts is None:
            raise ValueError(
                "the policy reads 'task_descriptions', which the observations do not have: use an "
                "env whose tasks have words"
            )
        return torch.tensor([self._known.get(text) or self._encode(text) for text in texts])

    def _encode(self, text: str) -> list[int]:
        words = re.findall(r"\w+", text.lower())
        unknown = [word for word in words if word not in self._numbers]
        if unknown:
            raise ValueError(
                f"the instruction {text!r} has the word(s) {', '.join(unknown)}, which model.words "
                "does not list"
            )
        if not 0 < len(words) <= self._length:
            raise ValueError(
                f"the instruction {text!r} has {len(words)} words; it must have 1 to "
                f"{self._length}: set model.max_words"
            )
        numbers = [self._numbers[word] for word in words]
        self._known[text] = padded = numbers + [PADDING] * (self._length - len(numbers))
        return padded
