"""What is new of a response since somebody looked: tokens as an engine tells of them."""

from __future__ import annotations

from rlinf.agents.serving.backend import Piece
from rlinf.hybrid_engines.generation.requests import GenerationResult


class TokenNews:
    """Collects the tokens of one response between two looks."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._told = 0

    def note(self, token: int, logprob: float, version: int) -> None:
        """Take a token."""
        self._tokens.append(token)
        self._logprobs.append(logprob)
        self._versions.append(version)

    def take(self) -> Piece | None:
        """Return what is new; None if nothing is."""
        return self._piece(None) if self._tokens else None

    def end(self, result: GenerationResult) -> Piece:
        """Return the last piece; what the engine returns is what counts."""
        self._tokens = result.token_ids[self._told :]
        self._logprobs = result.logprobs[self._told :]
        self._versions = result.versions[self._told :]
        return self._piece(result.finish_reason, result.computed_tokens)

    def _piece(self, reason: str | None, computed: int | None = None) -> Piece:
        piece = Piece(self._tokens, self._logprobs, self._versions, reason, computed)
        self._told += len(self._tokens)
        self._tokens, self._logprobs, self._versions = [], [], []
        return piece
