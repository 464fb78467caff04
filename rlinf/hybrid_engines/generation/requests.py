"""What goes into a generation engine and what comes out: prompts, settings, responses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a response are drawn.

    Attributes:
        max_new_tokens: Most tokens of a response, those carried over included; None is as many as
            fit behind the prompt.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Draw among this many likeliest tokens; 0 and -1 are all.
        top_p: Draw among the likeliest tokens that together have this probability.
        stop_token_ids: Tokens that end a response, besides the end of sequence of the model.
        ignore_eos: Do not end at the end of sequence of the model.
        seed: Of the noise of this request. Request, sample index and position alone decide on the
            noise, so the same request gives the same tokens in any batch. None is a new one.
        stop: Texts that end a response, for engines that have the tokenizer; the last token of the
            response is the one that completes the text.
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "stop", tuple(self.stop))
        require(
            self.max_new_tokens is None or self.max_new_tokens >= 1,
            f"max_new_tokens is {self.max_new_tokens}: at least 1 is needed, or None",
        )
        require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            f"temperature is {self.temperature}: 0 (the likeliest token) or more is needed",
        )
        require(self.top_k >= -1, f"top_k is {self.top_k}: 0 (all) or more is needed")
        require(0 < self.top_p <= 1, f"top_p is {self.top_p}: more than 0, at most 1 is needed")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0

    @property
    def cuts(self) -> bool:
        """Whether some tokens cannot be drawn at all."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)

    @classmethod
    def from_config(cls, section: Any, **further: Any) -> SamplingParams:
        """Read `algorithm.sampling_params`.

        Args:
            section: The section; `stop` texts are the caller's to turn into tokens.
            **further: Fields that the config does not have, or that replace it.

        Raises:
            ValueError: A repetition penalty, which would make the log-probabilities those of
                another distribution than the one that is trained.
        """
        if section.repetition_penalty != 1:
            raise ValueError(
                f"sampling_params.repetition_penalty is {section.repetition_penalty}: it changes "
                "the distribution that tokens are drawn from, so that the trainer would learn "
                "from log-probabilities that are not its own; set it to 1"
            )
        values = {
            "max_new_tokens": section.max_new_tokens,
            "temperature": float(section.temperature) if section.do_sample else 0.0,
            "top_k": section.top_k,
            "top_p": section.top_p,
        }
        return cls(**{**values, **further})


@dataclass
class GenerationResult:
    """One response.

    Attributes:
        request_id: Of the request.
        sample_index: Which of its samples.
        token_ids: The tokens; with the reason `stop` the last one is the one that ended it.
        logprobs: Of each token, log-softmax of logits / temperature (of logits, when the likeliest
            is taken) in fp32; top_k and top_p cut the drawing and not this.
        versions: Of the weights that gave each token.
        finish_reason: `stop`, `length` or `abort`.
        computed_tokens: Tokens that the engine read for it: of the prompt, less those whose keys
            and values it still had; what was read again after weights changed counts again. None
            if the engine does not say.
    """

    request_id: Hashable
    sample_index: int
    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: FinishReason
    computed_tokens: int | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt and how many responses to make to it.

    Attributes:
        request_id: Names it in results and for `abort`.
        prompt_ids: At least one token.
        params: How to draw.
        n: Responses; the prompt is read once for all of them.
        partials: Aborted responses to carry on, under whatever weights there are now. With any,
            only these are made. They need not come from the same engine.
    """

    request_id: Hashable
    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    partials: tuple[GenerationResult, ...] = ()

    def carry_on(self, results: Iterable[GenerationResult]) -> GenerationRequest | None:
        """Make the request that carries on what was aborted of this one.

        Args:
            results: What `abort` returned; other requests' results are left alone.

        Returns:
            The request, or None if nothing of it was aborted.
        """
        aborted = tuple(
            result
            for result in results
            if result.request_id == self.request_id and result.finish_reason == "abort"
        )
        return dataclasses.replace(self, partials=aborted) if aborted else None


def require(condition: bool, message: str) -> None:
    """Raise a ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)
