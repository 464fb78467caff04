"""Several agents in an episode: a lead hands out tasks, and workers do them side by side.

All of them are one model with one set of weights. Each has a context of its own: a worker reads its
task, and the lead reads what a worker has found, not how.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from rlinf.agents.episode import Episode, EpisodeOver
from rlinf.agents.loops import ToolLoop, register_agent_loop
from rlinf.agents.tools.parsers import parser_registry
from rlinf.agents.tools.tool import Tool
from rlinf.agents.tools.toolbox import MalformedCall, Toolbox, ToolCall, ToolResult
from rlinf.agents.trajectory import Trajectory

LEAD = 0
"""Number of the lead; workers are 1, 2, ... in the order of their tasks."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def task(question: str) -> str:
    """Give a worker a task; several at once are done side by side.

    Args:
        question: What the worker reads: all that it needs to know.
    """
    raise NotImplementedError("the loop starts workers itself")


TASK = Tool(task)
"""What the lead calls to start a worker."""


@register_agent_loop("team")
class TeamLoop(ToolLoop):
    """A lead that only hands out tasks, and workers that use tools.

    A response of the lead that calls `task` once or more starts as many workers. The lead reads
    their answers, in the order of the tasks, when all of them are there. What is inside of the last
    `<answer>` of a worker is its answer, or all that it wrote last. A worker that ends at a limit
    answers with an error; the episode goes on.

    Args:
        cfg: the `agentloop` section, with the keys of `rlinf.config.builtin.agent_loops.TeamKeys`.
        tokenizer: of the model.
        tools: that `agentloop.tools` names, for workers.
    """

    def __init__(self, cfg: Any, tokenizer: Any, tools: Toolbox) -> None:
        super().__init__(cfg, tokenizer, Toolbox([TASK]))
        self._worker = ToolLoop(cfg, tokenizer, tools)
        self._schemas = tools.schemas

    @classmethod
    def told(cls, cfg: Any) -> list[dict[str, Any]]:
        """Return the schema of `task`; see `AgentLoop.told`."""
        return [] if parser_registry.lookup(cfg.parser).inline else [TASK.schema]

    @property
    def stops(self) -> tuple[str, ...]:
        """Those of a worker; the lead writes several tasks before it waits."""
        return self._worker.stops

    async def run(self, episode: Episode) -> Trajectory:
        """See `AgentLoop.run`."""
        episode.numbers["workers"] = episode.numbers["worker_errors"] = 0.0
        question = episode.question
        ending, _ = await self.converse(
            episode, question.prompt_ids, question.messages, LEAD, stop=()
        )
        return episode.finish(ending)

    async def use(
        self, episode: Episode, calls: Sequence[ToolCall | MalformedCall], agent: int
    ) -> list[ToolResult]:
        """Let workers do the tasks of a response of the lead."""
        episode.note_calls(calls, agent)
        tasks = [asyncio.ensure_future(self._work(episode, call)) for call in calls]
        before = episode.numbers["worker_errors"]
        try:
            results = list(await asyncio.gather(*tasks))
            wrong = sum(result.error for result in results)
            # A worker that finds nothing is no mistake of the lead.
            episode.count_errors(int(wrong - (episode.numbers["worker_errors"] - before)))
            return results
        finally:
            # Where one fails, the others work for an episode that has ended.
            for task in tasks:
                task.cancel()

    async def _work(self, episode: Episode, call: ToolCall | MalformedCall) -> ToolResult:
        if isinstance(call, MalformedCall) or call.name != TASK.name:
            return await self.tools.call(call)
        wanted = str(call.arguments.get("question", "")).strip()
        if not wanted:
            return ToolResult(TASK.name, "the task is empty", error=True)
        if episode.numbers["workers"] >= self.cfg.max_workers:
            most = f"there are no more than {self.cfg.max_workers} workers"
            return ToolResult(TASK.name, most, error=True)
        episode.numbers["workers"] += 1
        number = int(episode.numbers["workers"])
        episode.limit(
            number,
            max_turns=self.cfg.worker_max_turns,
            max_total_tokens=self.cfg.worker_max_tokens,
        )
        text = self.cfg.worker_prompt.replace("{task}", wanted)
        episode.note("user", text, agent=number)
        try:
            ending, said = await self._worker.converse(episode, *self._start(text), number)
        except EpisodeOver as over:
            ending, said = over.ending, ""
        if ending != "done":
            episode.numbers["worker_errors"] += 1
            return ToolResult(TASK.name, f"no answer: the worker ended at {ending}", error=True)
        found = _ANSWER.findall(said)
        return ToolResult(TASK.name, (found[-1] if found else said).strip())

    def _start(self, text: str) -> tuple[list[int], list[dict[str, Any]] | None]:
        """Return the tokens that a worker reads first, and the messages that they are of."""
        if self.parser.inline:
            ids = list(self.tokenizer.encode(text))
            # Some tokenizers end every text; a prompt goes on.
            return ids[:-1] if ids[-1:] == [self.tokenizer.eos_token_id] else ids, None
        messages = [{"role": "user", "content": text}]
        rendered = self.tokenizer.apply_chat_template(
            messages, tools=self._schemas, tokenize=False, add_generation_prompt=True
        )
        return list(self.tokenizer.encode(rendered, add_special_tokens=False)), messages
