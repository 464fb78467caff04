"""Evaluates a language model on the validation prompts, without an actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.data.prompts import validation_prompts
from rlinf.data.reasoning import Verdict
from rlinf.data.tokenizer import tokenizer_of_run
from rlinf.models.evaluated import evaluated_model
from rlinf.runners.base_runner import BaseRunner
from rlinf.runners.reasoning_metrics import of_validation, sentence
from rlinf.runners.reasoning_services import ReasoningServices, channel_factory
from rlinf.runners.sample_file import write_evaluated
from rlinf.scheduler import WorkerGroup, wait_all
from rlinf.utils.phases import phases
from rlinf.utils.runs.folders import SAMPLES, shown


class ReasoningEvalRunner(BaseRunner):
    """Drives rollout and reward groups through one evaluation.

    The rollout workers load the weights themselves; see `rlinf.models.evaluated`.

    Args:
        cfg: checked configuration of task type `reasoning_eval`.
        rollout: group of `GenerationWorker`.
        reward: group of `RewardWorker`.
    """

    max_steps = 0

    def __init__(self, cfg: Any, rollout: WorkerGroup, reward: WorkerGroup):
        super().__init__(cfg, [], ("eval/pass@1",))
        self.rollout, self.reward = rollout, reward
        self.services = ReasoningServices(cfg, rollout, reward)
        self.global_step = evaluated_model(cfg).step
        self._validation = validation_prompts(cfg, tokenizer_of_run(cfg))

    def build_workers(self) -> None:
        """Build engines and rewards, and let the services begin."""
        wait_all(self.rollout.init_worker(), self.reward.init_worker())
        self.services.start(channel_factory())

    def evaluate(self) -> dict[str, float]:
        """Score responses to all prompts; the first one to each goes to `samples.jsonl`."""
        with phases.phase("evaluation"):
            verdicts = self.services.validate(self._validation, "validation", shown=True)
            found = self._of_validation(verdicts)
        write_evaluated(self.folder, verdicts)
        return found

    def _of_validation(self, verdicts: Sequence[Verdict]) -> dict[str, float]:
        """Return the metrics of the validation."""
        return of_validation(verdicts)

    def end_services(self) -> None:
        """Let rollout and reward workers come to their end."""
        self.services.end()
        self._validation.dataset.close()

    def findings(self, final: dict[str, float]) -> list[str]:
        """Return what the evaluation found, in sentences."""
        return [sentence(final)]

    def farewell(self, final: dict[str, float]) -> None:
        """What came out, and where everything is."""
        print("\n".join(self.findings(final)))
        print(f"everything is in {shown(self.folder)}; responses are in {SAMPLES}")

    # -- what an evaluation has not --------------------------------------------------------------

    def train_step(self) -> dict[str, float]:
        """There are no steps."""
        raise RuntimeError("runner.task_type reasoning_eval trains nothing; use reasoning")

    def state(self) -> dict[str, Any]:
        """Nothing has to be remembered."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing was remembered."""

    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        """There are no steps to show."""
        return {}

    def totals(self, training_seconds: float) -> dict[str, Any]:
        """There was no training."""
        return {}
