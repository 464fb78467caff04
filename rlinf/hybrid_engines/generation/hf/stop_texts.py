"""Texts of several tokens that end responses, looked for as tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class StopTexts:
    """Finds texts in what was written last.

    Decoding is slow, so that only those responses are decoded whose newest token may complete a
    text: it has the last character of one, or part of a character.

    Args:
        tokenizer: of the model.
        vocab_size: of the model; it may have more tokens than the tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._size = vocab_size
        self._pieces: list[str] | None = None
        self._known: set[str] = set()
        self._completes = np.zeros(vocab_size, bool)

    @classmethod
    def of_folder(cls, folder: str, vocab_size: int) -> StopTexts:
        """Load the tokenizer of a folder."""
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(folder, local_files_only=True), vocab_size)

    def know(self, texts: Sequence[str]) -> None:
        """Prepare for texts; what `completes` returns is of all that are known."""
        new = {text for text in texts if text} - self._known
        if not new:
            return
        self._known |= new
        if self._pieces is None:
            count = min(self._size, len(self._tokenizer))
            self._pieces = self._tokenizer.batch_decode(
                [[number] for number in range(count)], skip_special_tokens=False
            )
        last = {text[-1] for text in new}
        for number, piece in enumerate(self._pieces):
            if "\ufffd" in piece or not last.isdisjoint(piece):
                self._completes[number] = True

    def completes(self, tokens: np.ndarray) -> np.ndarray:
        """Return which tokens may complete a text.

        Args:
            tokens: `[B]`.

        Returns:
            `[B]` booleans.
        """
        return self._completes[tokens]

    def ends(self, texts: Sequence[str], tokens: Sequence[int]) -> bool:
        """Return whether the end of a response has one of the texts.

        Args:
            texts: which.
            tokens: of the response, or at least the last `reach(texts)`.
        """
        last = list(tokens[-self.reach(texts) :])
        written = self._tokenizer.decode(last, skip_special_tokens=False)
        return any(text in written for text in texts if text)

    @staticmethod
    def reach(texts: Sequence[str]) -> int:
        """Return how many tokens a text may be spread over: a token has a byte at least."""
        # Some more: what begins in the middle of a character is not decoded.
        return max((len(text.encode()) for text in texts), default=0) + 4
