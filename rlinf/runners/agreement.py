"""The gate before an update: rollout and learner must agree on what the policy did."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlinf.algorithms.agreement import Tolerance
from rlinf.scheduler import WorkerGroup
from rlinf.workers.agreement import PARTS, Finding

_ADVICE = {
    "weights": "the weight update does not bring over what the actor has: look at whoever changes "
    "the rollout's weights after it, and switch weight_syncer.verify on",
    "normaliser": "statistics must change after the last update on a batch only, and then reach "
    "the rollout with the weights (see BasePolicy.update_normalizer)",
    "inputs": "something writes into observations after the policy has seen them, or rows lose "
    "their order on the way: run rlinf check-env on the env",
    "dtype": "give actor.model.precision and rollout.model.precision the same value, or raise "
    "runner.agreement.tolerance if the difference is wanted",
    "computation": "weights, normaliser, inputs and number formats are the same: default_forward "
    "of the policy does not recompute what predict_action_batch did (try "
    "rlinf.models.embodiment.check_policy), or the kernels of both devices differ",
}


_ADVICE_FOR_TOKENS = {
    "inputs": "tokens or log-probabilities change between engine and actor: look at the reward, "
    "which must not write into samples",
    "computation": "whatever else could be compared is the same, so engine and trainer compute "
    "differently: try rollout.enforce_eager: true or another rollout.rollout_backend, and report "
    "it; if the difference is wanted, raise runner.agreement.tolerance and correct for it "
    "with algorithm.mismatch",
}
_PREFIX = "agreement/"


class PolicyDisagreement(RuntimeError):
    """Rollout and learner compute different log-probabilities for the same samples.

    Attributes:
        parts: what differs, of `rlinf.workers.agreement.PARTS`.
    """

    def __init__(self, message: str, parts: tuple[str, ...]):
        super().__init__(message)
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.parts)


class AgreementGate:
    """Compares log-probabilities before the first update of a run and then at an interval.

    Samples of weights that the actor does not have now, as in asynchronous runs, cannot be
    compared. A check that meets only such samples waits for the next rollout; if it has waited for
    ten, it says so once.

    Args:
        cfg: checked configuration.
        actor: group with `agreement()` and `find_differences(evidence)`.
        rollout: group with `number_format()` and `evidence()`.
    """

    _PATIENCE = 10

    def __init__(self, cfg: Any, actor: WorkerGroup, rollout: WorkerGroup):
        settings, sync = cfg.runner.agreement, cfg.runner.weight_sync_interval
        self._actor, self._rollout = actor, rollout
        self._mean = settings.tolerance
        self._never = settings.interval < 0
        # Only right after a weight update do both have the same weights.
        self._interval = -(-settings.interval // sync) * sync
        self._tolerance: Tolerance | None = None
        self._open = True
        self._waited = 0

    def check(self, step: int) -> dict[str, float]:
        """Let an update happen, or not.

        Args:
            step: steps made so far; the actor has their last rollout and has not learned from it.

        Returns:
            Metrics of the step; empty if nothing was due. The first step of a resumed run is
            checked but has no metrics of its own, so that they are those of the run that was not
            interrupted.

        Raises:
            PolicyDisagreement: the numbers differ by more than the tolerance; names what does.
        """
        if not self._looks(step):
            return {}
        answers = self._actor.agreement().wait()
        numbers, own_format = answers[0]
        if not self._compared(numbers):
            return {}
        too_far = self._tolerance_for(own_format).exceeded(numbers)
        if too_far:
            raise self._disagreement(step, too_far)
        if not self._due(step):
            return {}
        return {f"train/agreement/{name}": number for name, number in numbers.items()}

    def _due(self, step: int) -> bool:
        return step % self._interval == 0 if self._interval > 0 else step == 0

    def _looks(self, step: int) -> bool:
        """Return whether there is something to compare before the update of a step."""
        return not self._never and (self._due(step) or self._open)

    def _tolerance_for(self, own_format: torch.dtype) -> Tolerance:
        if self._tolerance is None:
            formats = self._rollout.number_format().wait()
            self._tolerance = Tolerance.of(self._mean, own_format, *formats)
        return self._tolerance

    def _compared(self, numbers: dict[str, float]) -> bool:
        """Return whether anything could be compared; if not, the next rollout is looked at."""
        if numbers["compared"]:
            self._open, self._waited = False, 0
            return True
        self._wait()
        return False

    def _wait(self) -> None:
        self._open = True
        self._waited += 1
        if self._waited == self._PATIENCE:
            print(
                f"warning: rollout and actor were not compared for {self._PATIENCE} rollouts: all "
                "samples come from older weights than the actor's; lower "
                "runner.weight_sync_interval or algorithm.max_policy_age for a while, or switch "
                "the comparison off with runner.agreement.interval: -1",
                file=sys.stderr,
                flush=True,
            )

    def _disagreement(self, step: int, too_far: list[str]) -> PolicyDisagreement:
        evidence = self._rollout.evidence().wait()
        answers = self._actor.find_differences(evidence).wait()
        findings = list(dict.fromkeys(finding for answer in answers for finding in answer))
        return PolicyDisagreement(*describe(step, too_far, findings))


class ReasoningGate(AgreementGate):
    """The same for language models, whose actor compares while it makes an update.

    The first minibatch gives log-probabilities anyway, and the actor holds them beside the engine's
    before it makes the first optimiser step.

    Args:
        cfg: checked configuration.
        actor: group with `number_format()` and `find_differences(evidence)`.
        rollout: group with `number_format()` and `evidence()`.
    """

    def __init__(self, cfg: Any, actor: WorkerGroup, rollout: WorkerGroup):
        super().__init__(cfg, actor, rollout)
        if not self._never and not cfg.rollout.return_logprobs:
            self._never = True
            print(
                "warning: engine and actor are not compared, since rollout.return_logprobs is "
                "false; set it to true, or runner.agreement.interval to -1",
                file=sys.stderr,
                flush=True,
            )

    def tolerance(self, step: int) -> Tolerance | None:
        """Return what the actor is to hold an update to; None if nothing is due.

        Args:
            step: steps made so far.
        """
        if not self._looks(step):
            return None
        own = None
        if self._tolerance is None:
            own = self._actor.number_format().wait()[0]
        return self._tolerance_for(own)

    def passed(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        """Take note of an update that was made.

        Args:
            step: steps made before it.
            metrics: of the update.

        Returns:
            The metrics, without those of the comparison unless it was due; see
            `AgreementGate.check`.
        """
        numbers = {name: value for name, value in metrics.items() if name.startswith(_PREFIX)}
        if not numbers:
            return metrics
        compared = self._compared({"compared": numbers[f"{_PREFIX}compared"]})
        if compared and self._due(step):
            return metrics
        return {name: value for name, value in metrics.items() if name not in numbers}

    def disagreement(self, step: int, too_far: list[str]) -> PolicyDisagreement:
        """Find out what differs, after the actor has refused an update.

        Args:
            step: steps made so far.
            too_far: which numbers are past the tolerance.
        """
        evidence = self._rollout.evidence().wait()
        answers = self._actor.find_differences(evidence).wait()
        findings = list(dict.fromkeys(finding for answer in answers for finding in answer))
        hidden = list(dict.fromkeys(each.hidden for each in evidence if each.hidden))
        advice = _ADVICE | _ADVICE_FOR_TOKENS
        return PolicyDisagreement(*describe(step, too_far, findings, advice, hidden))


def describe(
    step: int,
    too_far: list[str],
    findings: list[Finding],
    advice: Mapping[str, str] = _ADVICE,
    hidden: Sequence[str] = (),
) -> tuple[str, tuple[str, ...]]:
    """Say what differs and what to do about it; also returns the parts.

    Args:
        step: steps made so far.
        too_far: which numbers are past the tolerance.
        findings: what was found to differ.
        advice: what to do about each part.
        hidden: what could not be compared, in words.
    """
    parts = tuple(part for part in PARTS if any(found.part == part for found in findings))
    known = bool(parts) or not hidden
    # If nothing was found where something could not be looked at, it may be just that.
    parts = parts or (("weights", "computation") if hidden else ("computation",))
    lines = [
        f"rollout and actor disagree before the update of step {step + 1}: {'; '.join(too_far)}",
        f"what differs: {', '.join(parts) if known else ' or '.join(parts)}",
    ]
    for part in parts:
        lines += [f"  {part}: {found.text}" for found in findings if found.part == part]
        lines.append(f"  {part}: {advice[part]}")
    lines += [f"  not compared: {text}" for text in hidden]
    lines.append("runner.agreement has the interval and the tolerance of this comparison.")
    return "\n".join(lines), parts
