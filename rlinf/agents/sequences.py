"""From the log of engine calls of an episode to the sequences that are trained on.

A call whose prompt begins with all that an earlier sequence has is the next turn of it: the tokens
in between, of a tool or of a user, are appended and do not count, those that the engine wrote do,
unless the call says why not.
Any other call begins a sequence of its own. What it shares with others, also tokens that the policy
wrote there, is its prompt and does not count again: each token that was generated counts once, in
the place where the engine read exactly the tokens that stand before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rlinf.agents.calls import EngineCall, extends


@dataclass
class TokenSequence:
    """One sequence to train on: a prompt and R tokens that follow it.

    Attributes:
        prompt_ids: `[P]` tokens that the first call read.
        response_ids: `[R]` all that follows, whoever wrote it.
        logprobs: `[R]` of the tokens that the engine wrote, NaN where it did not say; 0 of the
            others.
        versions: `[R]` of the weights that drew each token; of others the version of the next
            token that was drawn.
        loss_mask: `[R]` whether the policy wrote the token, in a call that is learnt from.
        turns: `[R]` number of the call that wrote the token, or that read it first.
        agents: `[R]` number of the agent of that call.
        rewards: `[R]` what calls were given, each at the last token that it wrote; 0 elsewhere.
        finish_reason: of the last call.
    """

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    agents: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    finish_reason: str = "stop"

    @property
    def token_ids(self) -> list[int]:
        """Prompt and what follows, `[P + R]`."""
        return [*self.prompt_ids, *self.response_ids]

    def append(self, call: EngineCall, reward: float = 0.0) -> None:
        """Add a call that has read all of this sequence, and perhaps more.

        Args:
            call: the call.
            reward: what it was given.

        Raises:
            ValueError: it was given a reward and wrote no token.
        """
        if reward and not call.response_ids:
            raise ValueError(
                f"turn {call.turn} has the reward {reward:g}, but wrote no token that could learn "
                "from it; give the reward to another turn"
            )
        read = call.prompt_ids[len(self.prompt_ids) + len(self.response_ids) :]
        written = call.response_ids
        self.response_ids += [*read, *written]
        self.logprobs += [*[0.0] * len(read), *(call.logprobs or [math.nan] * len(written))]
        version = call.versions[0] if call.versions else max(self.versions, default=0)
        self.versions += [*[version] * len(read), *call.versions]
        self.loss_mask += [*[False] * len(read), *[not call.unlearnt] * len(written)]
        self.turns += [call.turn] * (len(read) + len(written))
        self.agents += [call.agent] * (len(read) + len(written))
        self.rewards += [0.0] * (len(read) + len(written))
        if reward:
            self.rewards[-1] = reward
        self.finish_reason = call.finish_reason


def sequences_of(
    calls: Iterable[EngineCall], rewards: Mapping[int, float] | None = None
) -> list[TokenSequence]:
    """Return the sequences that hold each generated token of some calls once.

    Args:
        calls: of one episode, in the order in which they were made. Calls that run side by side
            may come in any order that has each after those that it goes on from.
        rewards: what calls were given, by their `turn`.
    """
    sequences: list[TokenSequence] = []
    for call in calls:
        known = [s for s in sequences if extends(call.prompt_ids, s.token_ids)]
        # The longest is the latest turn of this conversation.
        target = max(known, key=lambda s: len(s.token_ids), default=None)
        if target is None:
            target = TokenSequence(list(call.prompt_ids))
            sequences.append(target)
        target.append(call, (rewards or {}).get(call.turn, 0.0))
    return sequences


def token_numbers(calls: Sequence[EngineCall]) -> dict[str, float]:
    """Count the tokens that engine calls read and wrote, and those that had to be computed.

    Args:
        calls: of one episode.
    """
    sequences = [sequence.token_ids for sequence in sequences_of(calls)]
    read = sum(len(call.prompt_ids) for call in calls)
    numbers: dict[str, float] = {
        "total_tokens": sum(map(len, sequences)),
        "context_tokens": max(map(len, sequences), default=0),
        "prompt_tokens": read,
    }
    # Of a live response that a stop text ended, the engine was not asked.
    told = [(c.computed_tokens, len(c.prompt_ids)) for c in calls if c.computed_tokens is not None]
    computed, of = sum(each for each, _ in told), sum(length for _, length in told)
    if told and len(told) == len(calls):
        numbers["computed_tokens"] = computed
    if told:
        numbers["prefix_reuse"] = 1.0 - computed / of
    return numbers
