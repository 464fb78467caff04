"""The training loop of agents: that of language models, over episodes of several turns."""

from __future__ import annotations

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
