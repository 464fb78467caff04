"""What every generation engine offers: prompts in, tokens with their log-probabilities out."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, Union

from torch import Tensor

from rlinf.hybrid_engines.generation.requests import GenerationRequest, GenerationResult, require
from rlinf.hybrid_engines.generation.settings import EngineSettings

KeptWeights = Literal["keep", "offload", "discard"]
NamedTensors: TypeAlias = Union[Mapping[str, Tensor], Iterable[tuple[str, Tensor]]]  # noqa: UP007
OnToken: TypeAlias = Callable[[Hashable, int, int, float], None]
"""Gets request id, sample index, token and log-probability."""


class GenerationEngine(ABC):
    """Generates with one copy of the weights.

    Args:
        max_length: Most tokens of prompt and response together.
        vocab_size: Tokens are below it.
        seed: Of the noise of requests without a seed of their own.
        version: Of the weights it starts with.

    Attributes:
        on_token: Called by `step` with each token as soon as it is known, for those who do not wait
            for the end of a response; None calls nobody.
    """

    on_token: OnToken | None = None

    def __init__(self, *, max_length: int, vocab_size: int, seed: int = 0, version: int = 0):
        require(max_length >= 2, f"max_length is {max_length}: a prompt and a response need 2")
        self.max_length = max_length
        self.vocab_size = vocab_size
        self._seed = seed
        self._seeds_given = 0
        self._version = version
        self._known: dict[Hashable, int] = {}
        self._unfinished = 0
        self._asleep = False
        self._weights_awake = True
        self._weights_lost = False

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: EngineSettings) -> GenerationEngine:
        """Build the engine.

        Raises:
            ValueError: A setting is not for this engine.
        """

    # -- what a caller uses ------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Number of the weights."""
        return self._version

    @property
    def unfinished(self) -> int:
        """Responses that were asked for and have not been returned."""
        return self._unfinished

    def submit(self, requests: Iterable[GenerationRequest]) -> None:
        """Take requests; their responses come out of `step`.

        Raises:
            ValueError: A request cannot be served; none of them is taken then.
        """
        requests = [self._seeded(request) for request in requests]
        seen = set(self._known)
        for request in requests:
            self._check(request, seen)
            seen.add(request.request_id)
        for request in requests:
            count = len(request.partials) or request.n
            self._known[request.request_id] = count
            self._unfinished += count
        self._submit(requests)

    def step(self) -> list[GenerationResult]:
        """Work on for a moment (one token each, usually) and return what was finished."""
        self._require_ready()
        return self._returned(self._step())

    def generate(self, requests: Iterable[GenerationRequest]) -> list[GenerationResult]:
        """Serve requests to the end.

        Returns:
            Responses in the order of the requests and of their samples.

        Raises:
            ValueError: The engine has other work, whose results would be lost.
        """
        requests = list(requests)
        if self.unfinished:
            raise ValueError(
                f"generate() needs an idle engine, but {self.unfinished} responses are being made; "
                "use submit() and step(), or abort() them"
            )
        self.submit(requests)
        results: list[GenerationResult] = []
        while self.unfinished:
            results += self.step()
        order = {request.request_id: place for place, request in enumerate(requests)}
        return sorted(results, key=lambda r: (order[r.request_id], r.sample_index))

    def abort(self, request_ids: Iterable[Hashable] | None = None) -> list[GenerationResult]:
        """End requests and return what there is of their responses.

        Args:
            request_ids: Which; None is all.

        Returns:
            One result per response that was not returned yet: what was made until now, with
            the reason `abort`, or `stop` and `length` for one that had just come to its end.

        Raises:
            ValueError: There is no such request, or it was finished.
        """
        if request_ids is not None:
            request_ids = set(request_ids)
            unknown = sorted(map(repr, request_ids - self._known.keys()))
            require(not unknown, f"abort: {', '.join(unknown)} is not being generated")
        return self._returned(self._abort(request_ids)) if self._known else []

    def update_weights(self, named: NamedTensors, version: int, recompute: bool = False) -> None:
        """Copy new weights over the old ones, in place; the very next token comes from them.

        Args:
            named: All weights under the names of the model's state dict; may be an iterator.
            version: Their number.
            recompute: What happens to responses in the making, whose keys and values are of the
                old weights. False: it is an error, so `abort()` and submit what is carried on;
                True: the engine reads their tokens again under the new weights.

        Raises:
            ValueError: Responses are in the making and `recompute` is false.
            WeightMismatch: A tensor is unknown, missing or of another shape.
        """
        with self._updating(version, recompute):
            self._update_weights(named)

    @property
    def takes_adapters(self) -> bool:
        """Whether `update_adapters` is there, for low-rank adapters beside fixed weights."""
        return False

    @property
    def takes_stop_texts(self) -> bool:
        """Whether requests may have `SamplingParams.stop`."""
        return False

    def update_adapters(
        self, named: NamedTensors, config: Any, version: int, recompute: bool = False
    ) -> None:
        """Replace the low-rank adapters that the weights are used with.

        Args:
            named: All of them, under the names of peft's files.
            config: Their `peft.LoraConfig`.
            version: Their number.
            recompute: As for `update_weights`.

        Raises:
            ValueError: The engine takes no adapters, or as `update_weights`.
        """
        require(
            self.takes_adapters,
            "this engine takes no adapters by themselves: set weight_syncer.lora to merged",
        )
        with self._updating(version, recompute):
            self._update_adapters(named, config, version)

    def sleep(self, weights: KeptWeights = "keep") -> None:
        """Free the memory of keys and values, and that of the weights.

        Args:
            weights: `keep` them on the device, `offload` them to the host, or `discard` them, in
                which case `update_weights` comes before the next token.

        Raises:
            ValueError: Responses are in the making, or the engine sleeps.
        """
        require(not self._asleep, "sleep: the engine sleeps already")
        require(
            not self.unfinished,
            f"sleep: {self.unfinished} responses are in the making; abort() them first",
        )
        self._sleep(weights)
        self._asleep = True
        self._weights_awake = False
        self._weights_lost = self._weights_lost or weights == "discard"

    def wake(self, weights_only: bool = False) -> None:
        """Take the memory back that `sleep` gave away.

        Args:
            weights_only: Leave the memory of keys and values to others for now, until `wake()`;
                `update_weights` can come in between.

        Raises:
            ValueError: The engine does not sleep.
        """
        require(self._asleep, "wake: the engine is awake")
        if not self._weights_awake:
            self._wake_weights()
            self._weights_awake = True
        if not weights_only:
            self._wake_cache()
            self._asleep = False

    @abstractmethod
    def stats(self) -> dict[str, float]:
        """Return the counters since the start and what is going on; see the page on engines."""

    def close(self) -> None:  # noqa: B027 - most engines hold nothing that outlives them
        """End what the engine started."""

    # -- what an engine is made of -----------------------------------------------------------------

    @abstractmethod
    def _submit(self, requests: list[GenerationRequest]) -> None:
        """Take checked requests, whose params have a seed."""

    @abstractmethod
    def _step(self) -> list[GenerationResult]:
        """Work on."""

    @abstractmethod
    def _abort(self, request_ids: set[Hashable] | None) -> list[GenerationResult]:
        """End known requests."""

    @abstractmethod
    def _update_weights(self, named: NamedTensors) -> None:
        """Load weights; responses in the making are recomputed."""

    def _update_adapters(self, named: NamedTensors, config: Any, version: int) -> None:
        """Load adapters; responses in the making are recomputed."""
        raise NotImplementedError

    @abstractmethod
    def _sleep(self, weights: KeptWeights) -> None:
        """Give memory away; the engine is idle."""

    @abstractmethod
    def _wake_weights(self) -> None:
        """Take the memory of the weights back, if it was given away."""

    @abstractmethod
    def _wake_cache(self) -> None:
        """Take the memory of keys and values back; the weights have theirs."""

    @contextmanager
    def _updating(self, version: int, recompute: bool) -> Iterator[None]:
        """Check that weights can be replaced; counts them as lost until the block is through."""
        require(self._weights_awake, "update_weights: the engine sleeps; wake() it first")
        require(
            recompute or not self.unfinished,
            f"update_weights: {self.unfinished} responses are in the making and their keys and "
            "values are of the old weights; abort() and submit what is carried on, or pass "
            "recompute=True",
        )
        self._weights_lost = True
        yield
        self._version = version
        self._weights_lost = False

    def _limit(self, request: GenerationRequest) -> int:
        """Most tokens of each response of a request."""
        room = self.max_length - len(request.prompt_ids)
        return room if request.params.max_new_tokens is None else request.params.max_new_tokens

    def _seeded(self, request: GenerationRequest) -> GenerationRequest:
        if request.params.seed is not None:
            return request
        self._seeds_given += 1
        seed = (self._seed << 32) + self._seeds_given
        return dataclasses.replace(request, params=dataclasses.replace(request.params, seed=seed))

    def _check(self, request: GenerationRequest, seen: set[Hashable]) -> None:
        name, prompt = request.request_id, request.prompt_ids
        require(name not in seen, f"request {name!r} is being generated already")
        require(request.n >= 1, f"request {name!r}: n is {request.n}, at least 1 is needed")
        require(len(prompt) > 0, f"request {name!r} has an empty prompt")
        if len(prompt) >= self.max_length:
            raise ValueError(
                f"request {name!r}: the prompt has {len(prompt)} tokens, which leaves no room for "
                f"a response in the {self.max_length} of a sequence; raise runner.seq_length "
                "or filter such prompts with data.filter_prompt_by_length"
            )
        limit = request.params.max_new_tokens
        if limit is not None and len(prompt) + limit > self.max_length:
            raise ValueError(
                f"request {name!r}: {len(prompt)} tokens of the prompt + {limit} new ones = "
                f"{len(prompt) + limit}, but a sequence has {self.max_length} at most; raise "
                "runner.seq_length or lower algorithm.sampling_params.max_new_tokens"
            )
        require(
            not request.params.stop or self.takes_stop_texts,
            f"request {name!r} ends at the texts {list(request.params.stop)}, but this engine has "
            "no tokenizer to find them with: build it with one, or use texts of one token each",
        )
        self._check_tokens(name, "prompt", prompt)
        for partial in request.partials:
            self._check_partial(request, partial)

    def _check_partial(self, request: GenerationRequest, partial: GenerationResult) -> None:
        name = f"request {request.request_id!r}, sample {partial.sample_index}"
        sizes = {len(partial.token_ids), len(partial.logprobs), len(partial.versions)}
        require(
            len(sizes) == 1,
            f"{name}: a partial response has {len(partial.token_ids)} tokens, "
            f"{len(partial.logprobs)} log-probabilities and {len(partial.versions)} versions",
        )
        require(
            partial.finish_reason == "abort",
            f"{name} ended with {partial.finish_reason!r}; only aborted ones are carried on",
        )
        limit = self._limit(request)
        require(
            len(partial.token_ids) < limit,
            f"{name} has {len(partial.token_ids)} tokens already, the most is {limit}",
        )
        self._check_tokens(request.request_id, "partial response", partial.token_ids)

    def _check_tokens(self, name: Hashable, what: str, tokens: Sequence[int]) -> None:
        if tokens and not (0 <= min(tokens) and max(tokens) < self.vocab_size):
            wrong = next(token for token in tokens if not 0 <= token < self.vocab_size)
            raise ValueError(
                f"request {name!r}: the {what} has the token {wrong}, but tokens are 0 to "
                f"{self.vocab_size - 1}; model and tokenizer do not belong together"
            )

    def _require_ready(self) -> None:
        require(not self._asleep, "the engine sleeps; wake() it first")
        require(
            not self._weights_lost,
            "the weights were discarded by sleep(), or not all replaced by an update that failed; "
            "update_weights() comes first",
        )

    def _returned(self, results: list[GenerationResult]) -> list[GenerationResult]:
        self._unfinished -= len(results)
        for result in results:
            left = self._known[result.request_id] - 1
            if left:
                self._known[result.request_id] = left
            else:
                del self._known[result.request_id]
        return results
