"""Evaluates an agent on the validation prompts, without an actor."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.data.reasoning import Verdict
from rlinf.runners.agent_evaluation import asks_without_tools, sentences, without_tools
from rlinf.runners.reasoning_eval_runner import ReasoningEvalRunner


class AgentEvalRunner(ReasoningEvalRunner):
    """Drives rollout and reward groups through one evaluation, over episodes of several turns.

    The rollout is a group of `AgentLoopWorker`, and `samples.jsonl` has the turns of episodes.
    """

    def _of_validation(self, verdicts: Sequence[Verdict]) -> dict[str, float]:
        found = super()._of_validation(verdicts)
        if asks_without_tools(self.cfg):
            key = "validation without tools"
            found |= without_tools(self.services, self._validation, key)
        return found

    def findings(self, final: dict[str, float]) -> list[str]:
        """What the episodes were like, also without tools."""
        return sentences(final)
