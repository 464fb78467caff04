"""What the endpoint asks of whatever generates: tokens in, tokens out, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

_ANY = ("max_new_tokens", "seed", "stop_token_ids", "whole")
"""Fields of a `Drawing` that leave the distribution of each token as it is."""


@dataclass(frozen=True)
class Drawing:
    """How the tokens of a response are drawn.

    Attributes:
        max_new_tokens: Most tokens.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_p: Draw among the likeliest tokens that together have this probability.
        top_k: Draw among this many likeliest tokens; 0 is all.
        seed: Of the noise; None is a new one.
        stop_token_ids: Tokens that end a response, besides the end token of the model.
        whole: Nobody reads before the end: all may come in one piece.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    whole: bool = False

    def sampling(self) -> dict[str, Any]:
        """Return what an engine has to know, by name."""
        return {name: value for name, value in vars(self).items() if name != "whole"}

    def distribution(self) -> dict[str, float]:
        """Return what the distribution of each token depends on, by name."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in _ANY
        }

    def differs(self, other: Drawing) -> str:
        """Return what makes tokens those of another distribution, in words; empty if nothing.

        Args:
            other: That this one is compared with.
        """
        of_other = other.distribution()
        return ", ".join(
            f"{name} {value:g} instead of {of_other[name]:g}"
            for name, value in self.distribution().items()
            if value != of_other[name]
        )


@dataclass(frozen=True)
class Piece:
    """The next tokens of a response.

    Attributes:
        token_ids: New tokens.
        logprobs: Of each of them.
        versions: Of the weights that drew each of them.
        finish_reason: `stop` or `length` with the last piece, None before.
        computed_tokens: With the last piece, what the engine read for the response, less what it
            still had of earlier ones; None if it does not say.
    """

    token_ids: Sequence[int] = field(default_factory=tuple)
    logprobs: Sequence[float] = field(default_factory=tuple)
    versions: Sequence[int] = field(default_factory=tuple)
    finish_reason: str | None = None
    computed_tokens: int | None = None


class EngineGone(RuntimeError):
    """An engine does not answer any more; what it was doing can be done by another one."""


class Backend(Protocol):
    """Generates. An engine is one, and so is a router over several.

    Attributes:
        name: Says which.
    """

    name: str

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence."""
        ...

    @property
    def load(self) -> int:
        """Responses under way."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        ...

    @property
    def version(self) -> int:
        """Of the weights."""
        ...

    def generate(
        self, prompt_ids: Sequence[int], drawing: Drawing, session: str = ""
    ) -> AsyncIterator[Piece]:
        """Generate one response.

        The last piece has a finish reason. Whoever stops to listen, by closing the iterator or by
        being cancelled, ends the response.

        Args:
            prompt_ids: At least one token.
            drawing: How.
            session: Responses of one session may share what an engine keeps of earlier ones; empty
                is none.

        Raises:
            EngineGone: It ended before the response did.
            ValueError: The request cannot be served.
        """
        ...
