"""What the endpoint of a run and its rollout workers tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlinf.agents.serving.backend import Drawing, Piece


@dataclass(frozen=True)
class LiveRequest:
    """A prompt of a client.

    Attributes:
        number: names it in answers and for `LiveAbort`.
        prompt_ids: `[P]` tokens.
        drawing: how to answer.
    """

    number: int
    prompt_ids: Sequence[int]
    drawing: Drawing


@dataclass(frozen=True)
class LiveAbort:
    """A request whose client has left."""

    number: int


@dataclass(frozen=True)
class LiveNews:
    """What a rollout worker has written since it told last.

    Attributes:
        rank: of the worker.
        version: of its weights.
        pieces: new tokens, by the number of the request.
        refused: requests that cannot be served, and why.
    """

    rank: int
    version: int
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
