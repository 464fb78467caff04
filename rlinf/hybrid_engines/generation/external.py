"""What engines of other projects share: one request of theirs per response of ours."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rlinf.hybrid_engines.generation.interface import GenerationEngine, NamedTensors
from rlinf.hybrid_engines.generation.noise import sample_key
from rlinf.hybrid_engines.generation.requests import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
)
from rlinf.hybrid_engines.generation.responses import Response, responses_of


@dataclass
class Made:
    """What came of one of their requests since the latest look.

    Attributes:
        key: Of the request.
        tokens: New ones.
        logprobs: Of these.
        finished: Why it ended, None if it goes on.
        reused: Tokens of the prompt that were not read again, told when it has ended; None if the
            engine does not say.
    """

    key: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finished: FinishReason | None = None
    reused: int | None = None


class ExternalEngine(GenerationEngine):
    """An engine that has an engine; arguments as for `GenerationEngine`.

    Their cache of prefixes lets the samples of a group share their prompt. A response that is
    carried on is a request whose prompt has the tokens so far.
    """

    def __init__(self, *, max_length: int, vocab_size: int, seed: int = 0, version: int = 0):
        super().__init__(max_length=max_length, vocab_size=vocab_size, seed=seed, version=version)
        self._open: dict[str, Response] = {}
        self._sizes: dict[str, int] = {}
        self._started = 0
        self._done: list[GenerationResult] = []
        self._new_tokens = 0

    # -- what an engine is made of -----------------------------------------------------------------

    @abstractmethod
    def _begin(self, key: str, tokens: list[int], response: Response, most: int, seed: int) -> None:
        """Start one of their requests.

        Args:
            key: Its name.
            tokens: The prompt, with what was made before.
            response: What it is for.
            most: New tokens, at most.
            seed: A positive 31-bit number.
        """

    @abstractmethod
    def _advance(self) -> Iterable[Made]:
        """Work on until something was made."""

    @abstractmethod
    def _halt(self, keys: list[str]) -> Iterable[Made]:
        """End requests; return what was made of them and not returned yet."""

    @abstractmethod
    def _load(self, named: NamedTensors) -> None:
        """Load weights; nothing runs meanwhile."""

    def _load_adapters(self, named: NamedTensors, config: Any, version: int) -> None:
        """Load adapters; nothing runs meanwhile."""
        raise NotImplementedError

    # -- shared ------------------------------------------------------------------------------------

    def _submit(self, requests: list[GenerationRequest]) -> None:
        for request in requests:
            for response in responses_of(request, self._limit(request)):
                self._start(response)

    def _step(self) -> list[GenerationResult]:
        if self._open and not self._done:
            self._take(self._advance())
        done, self._done = self._done, []
        return done

    def _abort(self, request_ids: set[Hashable] | None) -> list[GenerationResult]:
        def wanted(request_id: Hashable) -> bool:
            return request_ids is None or request_id in request_ids

        keys = [k for k, r in self._open.items() if wanted(r.request.request_id)]
        self._take(self._halt(keys))
        results = [result for result in self._done if wanted(result.request_id)]
        self._done = [result for result in self._done if not wanted(result.request_id)]
        left = [self._open.pop(key) for key in keys if key in self._open]
        for key in keys:
            self._sizes.pop(key, None)
        return [*results, *(response.result("abort") for response in left)]

    def _update_weights(self, named: NamedTensors) -> None:
        left = self._interrupted()
        self._load(named)
        for response in left:
            self._start(response)

    def _update_adapters(self, named: NamedTensors, config: Any, version: int) -> None:
        left = self._interrupted()
        self._load_adapters(named, config, version)
        for response in left:
            self._start(response)

    def _interrupted(self) -> list[Response]:
        """End all requests; return what has to be started again."""
        self._take(self._halt(list(self._open)))
        left = list(self._open.values())
        self._open.clear()
        self._sizes.clear()
        return left

    def _start(self, response: Response) -> None:
        self._started += 1
        key, made = str(self._started), len(response.tokens)
        self._open[key] = response
        # Their noise begins anew with each request: what is carried on must not repeat it.
        seed = sample_key(response.request.params.seed, response.sample_index) + made
        tokens = [*response.request.prompt_ids, *response.tokens]
        self._sizes[key] = len(tokens)
        self._begin(key, tokens, response, response.limit - made, seed & 0x7FFFFFFF)

    def _take(self, made: Iterable[Made]) -> None:
        for news in made:
            response = self._open.get(news.key)
            if response is None:
                continue
            response.tokens += news.tokens
            response.logprobs += news.logprobs
            response.versions += [self.version] * len(news.tokens)
            self._new_tokens += len(news.tokens)
            if self.on_token is not None:
                name, index = response.request.request_id, response.sample_index
                for token, logprob in zip(news.tokens, news.logprobs, strict=True):
                    self.on_token(name, index, token, logprob)
            if news.finished is not None:
                if news.reused is not None:
                    response.read(self._sizes[news.key], news.reused)
                del self._sizes[news.key]
                del self._open[news.key]
                self._done.append(response.result(news.finished))

    def stats(self) -> dict[str, float]:
        """Return the counters since the start and what is going on."""
        return {
            "new_tokens": self._new_tokens,
            "running": len(self._open),
            "version": self.version,
        }
