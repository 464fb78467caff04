"""What one episode asks of an engine: its requests under way, their seeds, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import replace

from rlinf.data.hashing import seed_of
from rlinf.hybrid_engines.generation import GenerationRequest, GenerationResult, SamplingParams
from rlinf.workers.rollout.engine_calls import EngineCalls


class EngineSession:
    """All requests of an episode, to one engine.

    An episode stays with the engine that it began with, which still has the keys and values of its
    earlier turns.

    Args:
        calls: of the engine.
        name: of the episode; no other session of the engine has it.
        number: of the episode among those of its question, for its seeds.

    Attributes:
        awake: agents that were answered, and have asked for nothing since.
    """

    def __init__(self, calls: EngineCalls, name: tuple[Hashable, ...], number: int) -> None:
        self._calls, self._name, self._number = calls, name, number
        self._ended = False
        self._pending: dict[Hashable, asyncio.Future[GenerationResult]] = {}
        self._turns: dict[int, int] = {}
        self.awake: set[int] = {-1}

    @property
    def waits(self) -> bool:
        """Whether the episode waits for the engine, and none of its agents may ask for more."""
        return bool(self._pending) and not self.awake

    async def ask(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, agent: int, hold: bool
    ) -> GenerationResult:
        """Return the response to one turn of an agent.

        Its seed follows from the episode, the agent and the number of its turn, whatever other
        agents do meanwhile.

        Args:
            prompt_ids: what the engine reads.
            params: how to draw; its seed is that of the question.
            agent: who asks; an agent asks for one thing at a time.
            hold: whether the engine is to do something else first.

        Raises:
            CancelledError: the episode has ended, and an agent of it goes on.
        """
        if self._ended:
            raise asyncio.CancelledError
        turn = self._turns[agent] = self._turns.get(agent, -1) + 1
        own = (turn,) if agent == 0 else (turn, agent)
        params = replace(params, seed=seed_of(params.seed, self._number, *own))
        name = (*self._name, agent, turn)
        answer: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()

        def done(results: list[GenerationResult]) -> None:
            del self._pending[name]
            self.awake.add(agent)
            if not answer.done():
                answer.set_result(results[0])
            # Else whoever asked was cancelled at this very moment.

        self._calls.submit(GenerationRequest(name, list(prompt_ids), params), done, hold=hold)
        self._pending[name] = answer
        self.awake -= {agent, -1}
        try:
            return await answer
        finally:
            if name in self._pending:
                # Whoever asked has been cancelled.
                del self._pending[name]
                self._calls.abort(name)

    def end(self) -> None:
        """End what the engine still generates for the episode."""
        self._ended = True
        pending, self._pending = self._pending, {}
        for name, answer in pending.items():
            self._calls.abort(name)
            answer.cancel()
