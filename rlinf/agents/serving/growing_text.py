"""Text of a response as it grows: whole characters, and nothing of a text that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BROKEN = "\ufffd"


class GrowingText:
    """Decodes tokens as they come.

    What may be the beginning of a stop text, or of a character, is held back until it is known.

    Args:
        tokenizer: Of the model.
        stops: Texts that end the response; they are no part of it.

    Attributes:
        text: All that was given out.
        stop_text: The stop text that has come; what comes behind it is not decoded. None before.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self.text = ""
        self.stop_text: str | None = None
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._tokens: list[int] = []
        # Of tokens before `_read` the text is known; decoding begins at `_from`, so that a token
        # whose text depends on the one before it is decoded behind that.
        self._from = self._read = 0
        self._held = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop text has come."""
        return self.stop_text is not None

    def add(self, token: int) -> str:
        """Take a token; return the text that is certain now."""
        if self.stopped:
            return ""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._from : self._read])
        after = self._decode(self._tokens[self._from :])
        if after.endswith(_BROKEN):
            return ""
        self._from, self._read = self._read, len(self._tokens)
        return self._give_out(after[len(before) :])

    def finish(self) -> str:
        """Return what was held back."""
        if self.stopped:
            return ""
        before = self._decode(self._tokens[self._from : self._read])
        rest = self._decode(self._tokens[self._from :])[len(before) :]
        self._from = self._read = len(self._tokens)
        out = self._give_out(rest) + self._held
        self.text += self._held
        self._held = ""
        return out

    def _give_out(self, new: str) -> str:
        known = self._held + new
        places = [(place, stop) for stop in self._stops if (place := known.find(stop)) >= 0]
        if places:
            end, self.stop_text = min(places)
            out, self._held = known[:end], ""
        else:
            keep = max((_overlap(known, stop) for stop in self._stops), default=0)
            out, self._held = known[: len(known) - keep], known[len(known) - keep :]
        self.text += out
        return out

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a stop text."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)
