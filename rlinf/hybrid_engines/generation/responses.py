"""One response in the making, from its request to its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf.hybrid_engines.generation.requests import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
)


@dataclass(eq=False)
class Response:
    """One response in the making.

    Attributes:
        request: What it is made for.
        sample_index: Which of the request's samples.
        limit: Most tokens.
        stops: Tokens that end it.
        tokens: Made before it got its row: carried over, or made under older weights.
        logprobs: Of these.
        versions: Of these.
        row: Of the cache of `hf`; -1 while it waits.
        lane: Where `hf` collects its new tokens; -1 while it waits.
        computed: Tokens that were read for it, see `GenerationResult.computed_tokens`.
    """

    request: GenerationRequest
    sample_index: int
    limit: int
    stops: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    row: int = -1
    lane: int = -1
    computed: int | None = None

    def read(self, tokens: int, reused: int) -> None:
        """Note that so many tokens before the next one were read, but for those that were there."""
        self.computed = (self.computed or 0) + tokens - reused

    def result(self, reason: FinishReason) -> GenerationResult:
        """Return what is returned to the caller."""
        return GenerationResult(
            self.request.request_id,
            self.sample_index,
            self.tokens,
            self.logprobs,
            self.versions,
            reason,
            self.computed,
        )


def responses_of(
    request: GenerationRequest, limit: int, stops: tuple[int, ...] = ()
) -> list[Response]:
    """Return what a request asks for: all samples, or the partial ones to be carried on.

    Args:
        request: It has a seed.
        limit: Most tokens of a response.
        stops: Tokens that end one.
    """
    if not request.partials:
        return [Response(request, index, limit, stops) for index in range(request.n)]
    return [
        Response(
            request,
            partial.sample_index,
            limit,
            stops,
            list(partial.token_ids),
            list(partial.logprobs),
            list(partial.versions),
            computed=partial.computed_tokens,
        )
        for partial in request.partials
    ]
