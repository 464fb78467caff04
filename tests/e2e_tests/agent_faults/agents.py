"""A run of agents that is struck: loops that use a tool in each episode, its workers, and teams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch

from rlinf.agents.episode import Episode
from rlinf.agents.team import LEAD, TASK
from rlinf.agents.tools.tool import Tool
from rlinf.agents.tools.toolbox import Toolbox, ToolCall
from rlinf.agents.trajectory import Trajectory
from rlinf.data.reasoning import GroupRequest
from rlinf.scheduler import WorkerGroup
from rlinf.workers.rollout.agent_loop_worker import AgentLoopWorker
from rlinf.workers.rollout.multi_agent_loop_worker import MultiAgentLoopWorker
from rlinf.workers.tools import remote_tools, tool_worker
from rlinf.workers.tools.remote_tools import RemoteTools
from rlinf.workers.tools.tool_worker import ToolWorker
from tests.e2e_tests.agent_faults.faults import Fault
from tests.e2e_tests.runners import BeginsAgain

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "agents" / "config"
_FEW = [
    "runner.max_steps=3",
    "runner.val_check_interval=2",
    "actor.supervised.steps=0",
    "actor.model.hf_config.hidden_size=32",
    "actor.model.hf_config.intermediate_size=64",
    "actor.model.hf_config.num_hidden_layers=1",
    "agentloop.eval_without_tools=false",
    "algorithm.group_size=4",
    "algorithm.sampling_params.max_new_tokens=6",
    "data.rollout_batch_size=4",
    "data.val_size=8",
]
FEW = {
    "calculator_agent": [*_FEW, "+cluster.component_placement.tools=1-2", "data.digits=1"],
    "wideseek_small": [*_FEW, "data.max_items=3"],
}
"""By recipe, what makes a run of it short."""


class Notes:
    """Keep what an episode says."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def __call__(self, text: str) -> int:
        self._said.append(text)
        return len(self._said)


def tools() -> list[Tool]:
    """The only tool of the run."""
    return [Tool(Notes)]


class Tools(BeginsAgain, ToolWorker):
    """Are struck where the fault says."""

    def __init__(self, cfg: Any, fault: Fault) -> None:
        tool_worker.make_toolbox = lambda *_, **__: Toolbox(tools())
        super().__init__(cfg)
        self._fault = fault

    @classmethod
    def restart_policy(cls, cfg: Any, fault: Any) -> str | dict[str, int]:
        return super().restart_policy(cfg)

    async def call_tool(self, session: str, name: str, arguments: Any, *rest: Any) -> Any:
        self._fault.strike(f"tool in {arguments['text']}", self._rank)
        return await super().call_tool(session, name, arguments, *rest)

    async def left_open(self) -> int:
        """States of episodes that nobody has closed."""
        return len(self._sessions)


class Loops(BeginsAgain):
    """Are struck where the fault says: in the second turn of an episode, or with new weights."""

    def __init__(self, cfg: Any, fault: Fault) -> None:
        super().__init__(cfg)
        self._fault, self._updates = fault, 0

    async def init_worker(self) -> None:
        await super().init_worker()
        torch.set_num_threads(1)

    def _episode(self, request: GroupRequest, number: int) -> Episode:
        made = super()._episode(request, number)
        made.phase = "evaluation" if request.validation else "training"
        ask = made._generate

        async def generate(prompt_ids: Any, limit: int, turn: int, *rest: Any, **own: Any) -> Any:
            if turn == 1:
                self._fault.strike("loop in " + made.phase)
            return await ask(prompt_ids, limit, turn, *rest, **own)

        made._generate = generate
        return made

    def _load(self) -> int:
        self._updates += 1
        if self._updates == 2:
            self._fault.strike("loop in update")
        return super()._load()

    async def rollout(self, *channels: Any) -> dict[str, float]:
        counters = await super().rollout(*channels)
        self._fault.strike("loop in end")
        return counters

    async def left_open(self) -> int:
        """Sessions of the engine that nobody has closed."""
        return len(self._sessions)


class Agents(Loops, AgentLoopWorker):
    """Write something, note it by a tool, and write again."""

    async def init_worker(self) -> None:
        await super().init_worker()
        # A worker that hangs is found out sooner than a run would.
        remote_tools._GRACE_SECONDS = 3.0
        remote = RemoteTools(await self._tool_group(), frozenset({"notes"}), 60.0)
        self._tools = Toolbox(tools(), self.cfg.agentloop.tool_timeout, remote=remote)

    async def _tool_group(self) -> WorkerGroup:
        name = self.cfg.tools.group_name
        return await asyncio.to_thread(WorkerGroup.from_group_name, Tools, name)

    async def run(self, episode: Episode) -> Trajectory:
        # No static text of several tokens ends a turn of this loop.
        first = await episode.generate(episode.question.prompt_ids, stop=["<answer> 1"])
        (result,) = await episode.use_tools([ToolCall("notes", {"text": episode.phase})])
        assert result.text == "1", result
        read = [*first.prompt_ids, *first.response_ids, *self._tokenizer.encode("1 2")]
        await episode.generate(read)
        return episode.finish()


class Teams(Loops, MultiAgentLoopWorker):
    """Have a lead that gives two workers the same task, whatever it writes."""

    async def run(self, episode: Episode) -> Trajectory:
        episode.numbers |= {"workers": 0.0, "worker_errors": 0.0}
        await episode.generate(episode.question.prompt_ids, LEAD, stop=())
        task = ToolCall(TASK.name, {"question": "red lamp where"})
        await self._loop.use(episode, [task, task], LEAD)
        assert {call.agent for call in episode.calls} == {LEAD, 1, 2}
        return episode.finish()
