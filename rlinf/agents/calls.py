"""One request to an engine: the tokens that it read and wrote, exactly as they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EngineCall:
    """What an engine was given and what came out of it.

    Attributes:
        prompt_ids: `[P]` tokens that it read, at least one.
        response_ids: `[R]` tokens that it wrote; with the reason "stop" the last one is the one
            that ended it.
        logprobs: `[R]` log-probability of each token under the distribution it was drawn from;
            empty if the engine gives none.
        versions: `[R]` version of the weights that drew each token.
        finish_reason: "stop" or "length".
        turn: number of the call in its episode, from 0.
        agent: number of the agent that made it.
        computed_tokens: tokens that the engine read for it, less those of the prompt that it still
            had of earlier calls; None if the engine does not say.
        unlearnt: why its tokens do not count in the loss; empty if they do.
        drawn: how a client had its tokens drawn, such as `temperature`; None if the run says that.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: str
    turn: int = 0
    agent: int = 0
    computed_tokens: int | None = None
    unlearnt: str = ""
    drawn: Mapping[str, float] | None = None

    @classmethod
    def of(
        cls, prompt_ids: Sequence[int], result: Any, turn: int = 0, agent: int = 0
    ) -> EngineCall:
        """Return the call that an engine has answered.

        Args:
            prompt_ids: what it was given.
            result: what it returned, a `GenerationResult`.
            turn: number of the call.
            agent: who made it.
        """
        return cls(
            prompt_ids,
            result.token_ids,
            result.logprobs,
            result.versions,
            result.finish_reason,
            turn,
            agent,
            result.computed_tokens,
        )

    def __post_init__(self) -> None:
        """Take any sequences, and check that they fit one another."""
        for name in ("prompt_ids", "response_ids", "logprobs", "versions"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.prompt_ids:
            raise ValueError(
                f"call {self.turn} has an empty prompt: the first token of a response needs one "
                "before it, at least a begin-of-text token"
            )
        if self.finish_reason not in ("stop", "length"):
            raise ValueError(
                f"call {self.turn} ended with {self.finish_reason!r}; only responses that came to "
                "their end ('stop', 'length') are part of an episode: carry an aborted one on first"
            )
        count = len(self.response_ids)
        if len(self.versions) != count or len(self.logprobs) not in (0, count):
            raise ValueError(
                f"call {self.turn} has {count} response tokens, {len(self.logprobs)} "
                f"log-probabilities and {len(self.versions)} versions; give one for each token"
            )

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and response, `[P + R]`."""
        return (*self.prompt_ids, *self.response_ids)


def extends(longer: Sequence[int], shorter: Sequence[int]) -> bool:
    """Return whether tokens begin with others; they may be the same."""
    return len(longer) >= len(shorter) and tuple(longer[: len(shorter)]) == tuple(shorter)
