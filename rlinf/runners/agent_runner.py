"""The training loop of agents: that of language models, over episodes of several turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.config.placed import is_placed
from rlinf.data.reasoning import Verdict
from rlinf.runners.agent_evaluation import asks_without_tools, sentences, without_tools
from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.scheduler import WorkerGroup
from rlinf.workers.tools.tool_worker import ToolWorker


def launch_tools(cfg: Any, cluster: Any, placement: Any) -> dict[str, WorkerGroup]:
    """Launch the workers of tools if the placement names them; return the group by its role.

    Args:
        cfg: checked configuration.
        cluster: where to.
        placement: has `get_strategy(component)`.
    """
    if not is_placed(cfg, "tools"):
        return {}
    group = ToolWorker.create_group(cfg).launch(
        cluster, name=cfg.tools.group_name, placement_strategy=placement.get_strategy("tools")
    )
    return {"tools": group}


class AgentRunner(ReasoningRunner):
    """Drives rollout, reward and actor groups through training.

    A response of one turn is the smallest episode, so the steps are those of `ReasoningRunner`. The
    rollout is a group of `AgentLoopWorker`, and `samples.jsonl` has the turns of episodes.

    Args:
        cfg: checked configuration.
        tools: group of `ToolWorker`, if the placement names it. The rollout workers find it by its
            name, and it is never waited for here: a worker of it that dies is started anew.
        **groups: see `ReasoningRunner`.
    """

    def __init__(self, cfg: Any, tools: WorkerGroup | None = None, **groups: WorkerGroup) -> None:
        if (tools is not None) != is_placed(cfg, "tools"):
            here = "was given" if tools is not None else "was not given"
            raise ValueError(
                f"a group of tools {here}, but cluster.component_placement "
                f"{'does not name' if tools is not None else 'names'} tools; use launch_tools of "
                "rlinf.runners.agent_runner"
            )
        super().__init__(cfg, **groups)

    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        """Score, speed, turns and tool calls."""
        facts = super().headline(metrics)
        facts["turns"] = f"{metrics['rollout/turns']:.1f}"
        facts["tool calls"] = f"{metrics['rollout/tool_calls']:.1f}"
        return facts

    def _of_validation(self, verdicts: Sequence[Verdict]) -> dict[str, float]:
        found = super()._of_validation(verdicts)
        if asks_without_tools(self.cfg) and self._validation is not None:
            key = f"validation {self.global_step} without tools"
            found |= without_tools(self.services, self._validation, key)
        return found

    def evaluation_cost(self) -> float | None:
        """Episodes of an evaluation, with and without tools, by those of the training."""
        cost = super().evaluation_cost()
        return cost if cost is None or not asks_without_tools(self.cfg) else 2 * cost

    def findings(self, final: dict[str, float]) -> list[str]:
        """What the episodes were like, also without tools."""
        return sentences(final)
