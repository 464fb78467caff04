"""An episode under way: what a loop may do, and the log of all that it did.

Everything that a model writes goes through `Episode.generate`, and is in the log as the engine gave
it. A loop that ends, at a limit or by itself, cannot but hand over that log.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rlinf.agents.calls import EngineCall
from rlinf.agents.sequences import token_numbers
from rlinf.agents.tools.toolbox import MalformedCall, Toolbox, ToolCall, ToolFailed, ToolResult
from rlinf.agents.trajectory import OVERLONG, Ending, Trajectory, Turn

Generate = Callable[..., Awaitable[EngineCall]]
"""Asks an engine: the prompt, most tokens of the response, and the numbers of turn and agent; where
a turn has texts of its own that end it, they come as `stop`."""

Judge = Callable[[str], Awaitable[float]]
"""Says what a text is worth as an answer."""


class EpisodeOver(Exception):
    """A limit was reached: the episode ends with what there is.

    Attributes:
        ending: which.
    """

    def __init__(self, ending: Ending) -> None:
        super().__init__(f"the episode ended at agentloop.{ending}")
        self.ending = ending


@dataclass(frozen=True)
class Question:
    """What an episode begins with.

    Attributes:
        prompt_ids: `[P]` tokens of it.
        text: the same as text.
        messages: the same as messages; None without a chat template.
        metadata: of the record of the data.
    """

    prompt_ids: tuple[int, ...]
    text: str = ""
    messages: Sequence[Mapping[str, Any]] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Episode:
    """One try at a question.

    Args:
        question: what it begins with.
        tokenizer: of the model.
        generate: asks the engine.
        tools: that may be used.
        max_turns: most responses of each agent.
        max_total_tokens: most tokens of a conversation: prompt, responses and answers of tools.
        max_new_tokens: most tokens of a response; None is what there is room for.
        judge: asks the reward of the run what a text is worth; None if it cannot be asked.

    Attributes:
        question: what it begins with.
        calls: of the engine until now.
        turns: what was written until now.
        score: what an environment gives for the episode until now; None leaves it to the reward.
        numbers: what the loop counts; their means over episodes become metrics.
    """

    def __init__(
        self,
        question: Question,
        tokenizer: Any,
        generate: Generate,
        tools: Toolbox | None = None,
        *,
        max_turns: int = 1,
        max_total_tokens: int,
        max_new_tokens: int | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.question = question
        self.score: float | None = None
        self._judge = judge
        self.calls: list[EngineCall] = []
        self.turns: list[Turn] = []
        self.numbers: dict[str, float] = {}
        self._tokenizer, self._generate = tokenizer, generate
        self._tools = (Toolbox([]) if tools is None else tools).session(question.metadata)
        self._max_turns, self._max_tokens = max_turns, max_total_tokens
        self._max_new = max_new_tokens
        self._asked: dict[int, int] = {}
        self._limits: dict[int, tuple[int, int]] = {}
        self._rewards: dict[int, float] = {}
        self._tool_calls = self._tool_errors = 0

    async def generate(
        self, prompt_ids: Sequence[int], agent: int = 0, stop: Sequence[str] | None = None
    ) -> EngineCall:
        """Let the model go on from some tokens.

        Args:
            prompt_ids: all that it reads; what it wrote before is to be there as it was written.
            agent: number of the agent that writes.
            stop: texts that end this response, besides the end token and those of
                `algorithm.sampling_params.stop`; None is those of the loop.

        Raises:
            EpisodeOver: there are no turns left, or no room for a token.
        """
        most_turns, most_tokens = self._limits.get(agent, (self._max_turns, self._max_tokens))
        if self._asked.get(agent, 0) >= most_turns:
            raise EpisodeOver("max_turns")
        room = most_tokens - len(prompt_ids)
        if room < 1:
            raise EpisodeOver("max_total_tokens")
        turn = sum(self._asked.values())
        self._asked[agent] = self._asked.get(agent, 0) + 1
        limit = room if self._max_new is None else min(room, self._max_new)
        own = {} if stop is None else {"stop": tuple(stop)}
        call = await self._generate(prompt_ids, limit, turn, agent, **own)
        self.calls.append(call)
        self.turns.append(Turn("assistant", self.text(call), agent, turn=turn))
        return call

    def limit(
        self, agent: int, *, max_turns: int | None = None, max_total_tokens: int | None = None
    ) -> None:
        """Give an agent limits of its own.

        Args:
            agent: its number.
            max_turns: most responses; None is that of the episode.
            max_total_tokens: most tokens of its context; None likewise.
        """
        self._limits[agent] = (max_turns or self._max_turns, max_total_tokens or self._max_tokens)

    def reward(self, value: float, *, agent: int = 0, turn: int | None = None) -> None:
        """Give a turn a reward, beside that of the episode; several add up.

        Args:
            value: what it is worth.
            agent: whose last turn, unless `turn` says which.
            turn: `EngineCall.turn` of a call of this episode.

        Raises:
            ValueError: there is no such turn, or the value is not finite.
        """
        known = [call.turn for call in self.calls if turn is not None or call.agent == agent]
        if not known or (turn is not None and turn not in known):
            whose = f"agent {agent} has no turn" if turn is None else f"there is no turn {turn}"
            raise ValueError(
                f"{whose} yet that could have the reward {value:g}; turns until now: "
                f"{sorted(call.turn for call in self.calls)}"
            )
        if not math.isfinite(value):
            raise ValueError(f"the reward of a turn is {value}; it must be finite")
        number = known[-1] if turn is None else turn
        self._rewards[number] = self._rewards.get(number, 0.0) + float(value)

    async def use_tools(
        self, calls: Sequence[ToolCall | MalformedCall], agent: int = 0
    ) -> list[ToolResult]:
        """Do what the model asks for, side by side; what it did wrong is among the answers.

        Args:
            calls: what it asks for.
            agent: who does; the last turn of it is given what the tools give.

        Raises:
            ToolFailed: a tool did not answer.
        """
        self.note_calls(calls, agent)
        results = await asyncio.gather(*map(self._tools.call, calls))
        self._tool_calls += len(results)
        self._tool_errors += sum(result.error for result in results)
        for result in results:
            if result.reward:
                self.reward(result.reward, agent=agent)
        return results

    def count_calls(self, count: int) -> None:
        """Count calls that are answered elsewhere."""
        self._tool_calls += count

    def count_errors(self, count: int) -> None:
        """Count calls that a loop has answered itself, with an error that the model reads."""
        self._tool_calls += count
        self._tool_errors += count

    async def judge(self, text: str) -> float:
        """Ask the reward of the run what a text is worth as an answer to the question.

        Raises:
            ToolFailed: it does not say.
        """
        if self._judge is None:
            raise ToolFailed(
                "the reward of the run cannot be asked: the loop needs `judges = True`"
            )
        return await self._judge(text)

    async def close(self) -> None:
        """Close what tools have opened for the episode."""
        await self._tools.close()

    def note(self, role: str, text: str, *, agent: int = 0, error: bool = False) -> None:
        """Add something to what a reader, and the reward, see of the episode."""
        self.turns.append(Turn(role, text, agent, error))

    def note_calls(self, calls: Sequence[ToolCall | MalformedCall], agent: int = 0) -> None:
        """Add the calls of an agent's last response to what a reader sees of it."""
        told = tuple(asdict(call) for call in calls)
        for place in reversed(range(len(self.turns))):
            turn = self.turns[place]
            if turn.role == "assistant" and turn.agent == agent:
                self.turns[place] = replace(turn, calls=told)
                return

    def text(self, call: EngineCall) -> str:
        """Return what the model wrote, special tokens included but for the one that ends it."""
        ids = list(call.response_ids)
        if ids and ids[-1] == self._tokenizer.eos_token_id:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def finish(self, ending: Ending = "done", answer: str | None = None) -> Trajectory:
        """Return what came of the episode.

        Args:
            ending: how it ends.
            answer: text that the reward judges; None is the last response of agent 0.
        """
        return self._trajectory(ending, answer)

    def fail(self, failure: str) -> Trajectory:
        """Return an episode that does not count, since something failed beside the policy."""
        return self._trajectory("failed", None, failure)

    def _trajectory(self, ending: Ending, answer: str | None, failure: str = "") -> Trajectory:
        if answer is None:
            own = [call for call in self.calls if call.agent == 0] or self.calls
            last = own[-1].response_ids if own else ()
            answer = self._tokenizer.decode(list(last), skip_special_tokens=True)
        numbers = {
            "turns": len(self.calls),
            **token_numbers(self.calls),
            **self.numbers,
            "tool_calls": self._tool_calls,
            "tool_errors": self._tool_errors,
            "overlong": ending in OVERLONG,
            "failed": ending == "failed",
            "turn_rewards": sum(self._rewards.values()),
        }
        for name, usage in self._tools.usage.items():
            numbers |= {f"tools/{name}/{key}": value for key, value in asdict(usage).items()}
        given = self._rewards
        turns = [replace(turn, reward=given.get(turn.turn, 0.0)) for turn in self.turns]
        return Trajectory(
            calls=tuple(self.calls),
            turns=tuple(turns),
            ending=ending,
            answer=answer,
            numbers={name: float(value) for name, value in numbers.items()},
            failure=failure,
            score=self.score,
            rewards=dict(given),
        )


async def play(run: Callable[[Episode], Awaitable[Trajectory]], episode: Episode) -> Trajectory:
    """Let a loop play an episode to its end, at a limit or with a failure if need be.

    Args:
        run: `run` of a loop.
        episode: a fresh one.
    """
    try:
        return await run(episode)
    except EpisodeOver as over:
        return episode.finish(over.ending)
    except ToolFailed as error:
        return episode.fail(str(error))
    finally:
        await episode.close()
