"""Reads the fields of a request, and says what is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlinf.agents.serving.backend import Drawing
from rlinf.agents.serving.errors import ApiError

MOST_CHOICES = 128
MOST_STOPS = 4
_SEED_BITS = 63


class Fields:
    """The JSON object of a request.

    Args:
        body: The object.
        known: Names that the caller reads.
        without_effect: Names that are taken and change nothing here.
        neutral: Names that are not supported, with the values that ask for nothing.
    """

    def __init__(
        self,
        body: Any,
        known: Collection[str],
        without_effect: Collection[str] = (),
        neutral: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        if not isinstance(body, Mapping):
            raise ApiError(f"the body must be a JSON object, not {_short(body)}")
        self._body = body
        neutral = neutral or {}
        for name, value in body.items():
            if name in known or name in without_effect:
                continue
            if name not in neutral:
                raise ApiError(
                    f"unknown parameter {name!r}; known are {', '.join(sorted(known))}",
                    param=name,
                    code="unknown_parameter",
                )
            if value is not None and value not in neutral[name]:
                raise ApiError(
                    f"{name} is {_short(value)}: this endpoint does not support it; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )

    def get(self, name: str) -> Any:
        """Return a value as it is; None if it is not there."""
        return self._body.get(name)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Return a number within bounds."""
        value = self._body.get(name)
        if value is None:
            return default
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        # Neither NaN nor infinity is within bounds.
        if not plain or not least <= value <= most:
            raise ApiError(
                f"{name} is {_short(value)}: a number from {least:g} to {most:g} is needed",
                param=name,
            )
        return float(value)

    def integer(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number within bounds; None if it is not there."""
        value = self._body.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ApiError(
                f"{name} is {_short(value)}: a whole number from {least} to {most} is needed",
                param=name,
            )
        return value

    def boolean(self, name: str) -> bool:
        """Return a truth value; False if it is not there."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bool):
            raise ApiError(f"{name} is {_short(value)}: true or false is needed", param=name)
        return bool(value)

    def text(self, name: str, default: str = "") -> str:
        """Return a text; the default if it is not there."""
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ApiError(f"{name} is {_short(value)}: a text is needed", param=name)
        return value

    def stops(self, name: str = "stop", most: int = MOST_STOPS) -> tuple[str, ...]:
        """Return texts that end a response."""
        value = self._body.get(name)
        if value is None:
            return ()
        texts = [value] if isinstance(value, str) else value
        fits = isinstance(texts, list) and len(texts) <= most
        if not fits or not all(isinstance(text, str) and text for text in texts):
            raise ApiError(
                f"{name} is {_short(value)}: a text or at most {most} texts are needed, none empty",
                param=name,
            )
        return tuple(texts)

    def drawing(self, limit: int | None, default: Drawing) -> Drawing:
        """Return how tokens are to be drawn.

        Args:
            limit: Most tokens that the request asks for; None is the default's.
            default: What the model does unless it is told otherwise.
        """
        return Drawing(
            max_new_tokens=default.max_new_tokens if limit is None else limit,
            temperature=self.number("temperature", default.temperature, 0, 2),
            top_p=self._share(default.top_p),
            top_k=default.top_k,
            seed=self._seed(),
            stop_token_ids=default.stop_token_ids,
        )

    def _share(self, default: float) -> float:
        share = self.number("top_p", default, 0, 1)
        # OpenAI allows 0, which is the likeliest token.
        return max(share, 1e-9)

    def _seed(self) -> int | None:
        seed = self.integer("seed", -(2**_SEED_BITS), 2**_SEED_BITS - 1)
        return None if seed is None else seed % 2**31


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
