"""A finished episode: the log of its engine calls, how it ended, and what a reader sees of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlinf.agents.calls import EngineCall
from rlinf.agents.sequences import TokenSequence, sequences_of

Ending = Literal["done", "max_turns", "max_total_tokens", "failed"]
"""How an episode ends: by itself, at a limit, or because something failed beside the policy."""

OVERLONG = ("max_turns", "max_total_tokens")


@dataclass(frozen=True)
class Turn:
    """A part of an episode as text, for rewards and readers.

    Attributes:
        role: who wrote it: "assistant" for the policy, "tool", "user", ...
        text: what.
        agent: number of the agent that wrote or read it.
        error: whether it tells the policy of a mistake.
        turn: number of the engine call that wrote it; -1 if it is not of the policy.
        reward: what that call was given beside the reward of the episode.
        calls: what it asks tools for: `name` and `arguments` of each, or the `problem` of what
            cannot be read as a call.
    """

    role: str
    text: str
    agent: int = 0
    error: bool = False
    turn: int = -1
    reward: float = 0.0
    calls: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Trajectory:
    """What came of an episode.

    Attributes:
        calls: of the engine, in their order.
        turns: the same and all that was read in between, as text.
        ending: see `Ending`.
        answer: text that the reward judges.
        numbers: of the episode, such as the tool calls; their means become metrics.
        failure: what failed, with the ending "failed".
        score: what an environment gives for the episode; None leaves it to the reward.
        rewards: what calls were given beside the reward of the episode, by their `turn`.
    """

    calls: Sequence[EngineCall]
    turns: Sequence[Turn] = ()
    ending: Ending = "done"
    answer: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    score: float | None = None
    rewards: Mapping[int, float] = field(default_factory=dict)

    @property
    def overlong(self) -> bool:
        """Whether it ended at a limit."""
        return self.ending in OVERLONG

    def sequences(self) -> list[TokenSequence]:
        """Return the sequences to train on; see `rlinf.agents.sequences`."""
        return sequences_of(self.calls, self.rewards)
