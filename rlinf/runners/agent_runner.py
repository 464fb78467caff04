"""The training loop of agents: that of language models, over episodes of several turns."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.data.reasoning import Verdict
from rlinf.runners.agent_evaluation import asks_without_tools, sentence, without_tools
from rlinf.runners.reasoning_runner import ReasoningRunner


class AgentRunner(ReasoningRunner):
    """Drives rollout, reward and actor groups through training.

    A response of one turn is the smallest episode, so the steps are those of `ReasoningRunner`. The
    rollout is a group of `AgentLoopWorker`, and `samples.jsonl` has the turns of episodes.
    """

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

    def farewell(self, final: dict[str, float]) -> None:
        """What came out, also without tools, and where everything is."""
        super().farewell(final)
        if (said := sentence(final)) is not None:
            print(said)
