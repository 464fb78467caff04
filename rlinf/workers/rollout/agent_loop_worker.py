"""The rollout worker of agents: questions in, groups of episodes out, over one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlinf.agents.calls import EngineCall
from rlinf.agents.episode import Episode, Question, play
from rlinf.agents.loops import make_loop
from rlinf.agents.tools.build import stateful_tools
from rlinf.agents.tools.toolbox import Toolbox, ToolFailed
from rlinf.agents.trajectory import Trajectory
from rlinf.config.placed import is_placed
from rlinf.config.plugins import load_extension
from rlinf.data.prompts import documents_of_run
from rlinf.data.reasoning import GroupRequest
from rlinf.data.tokenizer import stops_of, tokenizer_of_run
from rlinf.scheduler import Channel
from rlinf.workers.reward.scorer import Scorer
from rlinf.workers.rollout.engine_session import EngineSession
from rlinf.workers.rollout.episode_samples import group_of_episodes
from rlinf.workers.rollout.generation_worker import GenerationWorker
from rlinf.workers.tools.remote_tools import RemoteTools

_MOST_ROUNDS = 32
"""Turns of the event loop that episodes get before the engine goes on without those that wait for
something it does not know of."""
_NO_TOOLS = Toolbox([])
"""Answers each call as that of an unknown tool."""


class AgentLoopWorker(GenerationWorker):
    """Plays many episodes at once; each asks the engine whenever it has something to read.

    Between two tokens all episodes go on until they wait, for the engine or for a tool. So what
    shares a batch does not depend on chance as long as tools answer at once, and a run can be
    repeated.

    Args:
        cfg: checked configuration, with an `agentloop` section.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._groups: set[asyncio.Task[None]] = set()
        self._sessions: dict[Episode, EngineSession] = {}
        self._endings: dict[tuple[str, ...], dict[str, Any]] = {}

    _scorer: Scorer | None = None
    _turns_name_stops = True

    async def init_worker(self) -> None:
        """Build the loop and its tools, and the engine."""
        load_extension()
        self._tokenizer = tokenizer_of_run(self.cfg)
        remote = await self._remote_tools()
        self._loop, self._tools = await asyncio.to_thread(
            make_loop,
            self.cfg.agentloop,
            self._tokenizer,
            remote,
            documents=documents_of_run(self.cfg),
        )
        if remote is None:
            await asyncio.to_thread(self._tools.prepare)
        if self._loop.judges:
            self._scorer = Scorer(self.cfg.reward)
            await asyncio.to_thread(self._scorer.wait_ready)
        await super().init_worker()

    async def _remote_tools(self) -> RemoteTools | None:
        """Return what calls the tools, if they have workers of their own."""
        if not is_placed(self.cfg, "tools"):
            return None
        stateful = stateful_tools(self.cfg.agentloop)
        name, come_back = self.cfg.tools.group_name, self.cfg.cluster.timeouts.launch
        return await asyncio.to_thread(RemoteTools.connect, name, stateful, come_back)

    async def run(self, episode: Episode) -> Trajectory:
        """Play an episode: by the loop that `agentloop.type` names."""
        return await self._loop.run(episode)

    def _stop_texts(self, tokenizer: Any) -> tuple[str, ...]:
        return (*super()._stop_texts(tokenizer), *self._loop.stops)

    async def rollout(self, input_channel: Channel, output_channel: Channel) -> dict[str, float]:
        """Serve requests until the input channel is closed; see `GenerationWorker.rollout`."""
        try:
            return await super().rollout(input_channel, output_channel)
        finally:
            for task in self._groups:
                task.cancel()

    @property
    def _plays(self) -> bool:
        # What is held is not carried on after the last request.
        return bool(self._groups) and not self._calls.holds

    # -- episodes -------------------------------------------------------------------------------

    def _submit(self, request: GroupRequest) -> None:
        group = asyncio.ensure_future(self._play(request))
        group.add_done_callback(lambda _: self._came.set())
        self._groups.add(group)

    async def _play(self, request: GroupRequest) -> None:
        """Play the episodes of a request."""
        episodes = [self._episode(request, number) for number in range(request.group_size)]
        played = await asyncio.gather(*map(self._to_its_end, episodes))
        for failure in {each.failure for each in played if each.failure}:
            self.log_warning(f"an episode of prompt {request.prompt.index} failed: {failure}")
        overlong = self.cfg.agentloop.overlong
        self._complete.append(group_of_episodes(request, played, overlong))

    async def _to_its_end(self, episode: Episode) -> Trajectory:
        try:
            return await play(self.run, episode)
        finally:
            self._sessions.pop(episode).end()

    def _episode(self, request: GroupRequest, number: int) -> Episode:
        prompt, section = request.prompt, self.cfg.agentloop
        session = EngineSession(self._calls, (request.key, prompt.index, number), number)
        params = self._params(request)

        async def ask(
            prompt_ids: Sequence[int],
            limit: int,
            turn: int,
            agent: int,
            stop: Sequence[str] | None = None,
        ) -> EngineCall:
            how = replace(params, max_new_tokens=limit, **self._ending(stop))
            self._came.set()
            hold = self._holds(request)
            result = await session.ask(prompt_ids, how, agent=agent, hold=hold)
            return EngineCall.of(prompt_ids, result, turn, agent)

        async def judge(text: str) -> float:
            outcome = await self._scorer.score(text, prompt)
            if outcome.status != "ok":
                raise ToolFailed(
                    f"the reward did not say what an answer is worth: {outcome.message}"
                )
            return outcome.value["score"]

        episode = Episode(
            Question(tuple(prompt.token_ids), prompt.text, prompt.messages, prompt.metadata),
            self._tokenizer,
            ask,
            self._tools if request.tools else _NO_TOOLS,
            max_turns=section.max_turns,
            max_total_tokens=section.max_total_tokens or self.cfg.runner.seq_length,
            max_new_tokens=params.max_new_tokens,
            judge=None if self._scorer is None else judge,
        )
        self._sessions[episode] = session
        return episode

    def _ending(self, stop: Sequence[str] | None) -> dict[str, Any]:
        """Return the parameters that say what ends a turn; none is what ends all of them."""
        if stop is None:
            return {}
        found = self._endings.get(tuple(stop))
        if found is None:
            always = super()._stop_texts(self._tokenizer)
            ends, texts = stops_of(self._tokenizer, [*always, *stop])
            found = self._endings[tuple(stop)] = {"stop_token_ids": ends, "stop": texts}
        return found

    async def _hand_out(self, channel: Channel) -> None:
        """Let episodes go on until they wait, then put what is complete."""
        going_on = list(self._sessions.values())
        for _ in range(_MOST_ROUNDS):
            # Of thousands most wait at once: they are not looked at again.
            going_on = [session for session in going_on if not session.waits]
            if not going_on:
                break
            await asyncio.sleep(0)
        for session in self._sessions.values():
            # Who has not asked by now waits for something else.
            session.awake.clear()
        for task in [task for task in self._groups if task.done()]:
            self._groups.discard(task)
            task.result()
        await super()._hand_out(channel)

    def on_shutdown(self) -> None:
        """Leave servers of tools, and end what the engine started."""
        if hasattr(self, "_tools"):
            self._tools.close()
        if self._scorer is not None:
            self._scorer.close()
        super().on_shutdown()
