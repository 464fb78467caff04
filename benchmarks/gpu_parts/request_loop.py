"""A plain loop of requests: episodes one after the other, each request waited for.

It asks the engine, the tools and the loop of a run, without its workers: what an agent framework
does with a model that it calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlinf.agents.calls import EngineCall
from rlinf.agents.episode import Episode, Question, play
from rlinf.agents.loops import make_loop
from rlinf.agents.trajectory import Trajectory
from rlinf.data.hashing import seed_of
from rlinf.data.prompts import documents_of_run, training_prompts
from rlinf.data.reasoning import Prompt
from rlinf.data.tokenizer import stops_of, tokenizer_of_run
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationRequest,
    SamplingParams,
    build_engine,
)

_WARM_UP = 2
"""Episodes before the clock starts, which compile kernels and capture graphs."""


@dataclass(frozen=True)
class Played:
    """What episodes took.

    Attributes:
        trajectories: What came of them.
        seconds: All of them together.
    """

    trajectories: Sequence[Trajectory]
    seconds: float

    @property
    def written(self) -> int:
        """Tokens that the model wrote."""
        return sum(len(call.response_ids) for each in self.trajectories for call in each.calls)

    @property
    def read(self) -> int:
        """Tokens of all prompts, those of earlier turns included."""
        return sum(len(call.prompt_ids) for each in self.trajectories for call in each.calls)

    @property
    def computed(self) -> int | None:
        """Tokens of the prompts that the engine did not know already; None if it does not say."""
        found = [call.computed_tokens for each in self.trajectories for call in each.calls]
        return None if None in found else sum(found)


class RequestLoop:
    """Plays the questions of a run, with an engine and tools of this process.

    Args:
        cfg: Checked config of the run; `actor.model.model_path` has the weights.
    """

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg
        self._tokenizer = tokenizer_of_run(cfg)
        documents = documents_of_run(cfg)
        self._loop, self._tools = make_loop(cfg.agentloop, self._tokenizer, documents=documents)
        self._tools.prepare()
        stop = (*cfg.algorithm.sampling_params.stop, *self._loop.stops)
        ends, texts = stops_of(self._tokenizer, stop)
        self._params = SamplingParams.from_config(
            cfg.algorithm.sampling_params, stop_token_ids=ends, stop=texts
        )
        settings = EngineSettings.from_config(cfg)
        settings = replace(settings, tokenizer_path=settings.model_path)
        self._engine = build_engine(cfg.rollout.rollout_backend, settings)

    def play(self, episodes: int, seconds: float) -> Played:
        """Play questions in the order of training, each as often as a group has episodes.

        Args:
            episodes: Most of them.
            seconds: After which no other one begins.
        """
        size = self._cfg.algorithm.group_size
        stream = training_prompts(self._cfg, self._tokenizer)
        prompts = stream.take(-(-episodes // size))
        stream.close()
        tries = [(prompt, number) for prompt in prompts for number in range(size)][:episodes]
        return asyncio.run(self._play(tries, seconds))

    def close(self) -> None:
        """Close tools and engine."""
        self._tools.close()
        self._engine.close()

    async def _play(self, tries: Sequence[tuple[Prompt, int]], seconds: float) -> Played:
        for prompt, number in tries[:_WARM_UP]:
            await self._episode(prompt, number, "warm up")
        played: list[Trajectory] = []
        begin = time.perf_counter()
        for prompt, number in tries:
            played.append(await self._episode(prompt, number, "timed"))
            if time.perf_counter() - begin > seconds:
                break
        return Played(played, time.perf_counter() - begin)

    async def _episode(self, prompt: Prompt, number: int, purpose: str) -> Trajectory:
        async def ask(prompt_ids: Sequence[int], limit: int, turn: int, agent: int) -> EngineCall:
            seed = seed_of(purpose, prompt.index, number, turn, agent)
            params = replace(self._params, max_new_tokens=limit, seed=seed)
            name = (purpose, prompt.index, number, turn, agent)
            self._engine.submit([GenerationRequest(name, list(prompt_ids), params)])
            results = []
            while not results:
                results = self._engine.step()
            (result,) = results
            return EngineCall.of(prompt_ids, result, turn, agent)

        section = self._cfg.agentloop
        question = Question(tuple(prompt.token_ids), prompt.text, prompt.messages, prompt.metadata)
        episode = Episode(
            question,
            self._tokenizer,
            ask,
            self._tools,
            max_turns=section.max_turns,
            max_total_tokens=section.max_total_tokens or self._cfg.runner.seq_length,
            max_new_tokens=self._params.max_new_tokens,
        )
        return await play(self._loop.run, episode)
