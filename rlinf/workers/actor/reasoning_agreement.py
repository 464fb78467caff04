"""The gate before the first optimiser step on a batch: the engine's log-probabilities are ours."""

from __future__ import annotations

from torch import Tensor

from rlinf.algorithms.agreement import Tolerance, logprob_gap
from rlinf.algorithms.metrics import Metric, MetricSum, merge_metrics, reduce_metrics
from rlinf.data.token_batch import TokenBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.workers.agreement import Place
from rlinf.workers.reasoning_agreement import TooFarApart, received_responses


class Comparison:
    """Holds log-probabilities of engine and learner side by side, and stops an update.

    The first minibatch goes through the policy before the first optimiser step, with the weights
    that are compared: what it gives is noted here, and costs no pass of its own. Only tokens that
    were drawn with these weights are compared. It watches the update loop, see
    `rlinf.workers.actor.update_loop.UpdateWatch`.

    Args:
        engine: the policy.

    Attributes:
        numbers: of the last comparison, over all ranks: `compared`, the part of the tokens that are
            of these weights; if there are any, `logprob_max` and `logprob_mean`. None if there was
            no optimiser step since `begin`.
    """

    def __init__(self, engine: TrainEngine) -> None:
        self._engine = engine
        self._tolerance: Tolerance | None = None
        self._version = 0
        self._parts: list[dict[str, Metric]] = []
        self._batches: list[TokenBatch] = []
        self.numbers: dict[str, float] | None = None

    def begin(self, tolerance: Tolerance | None, version: int) -> None:
        """A batch is about to be trained on.

        Args:
            tolerance: what is not too far; None compares nothing.
            version: of the weights as they are.
        """
        self._tolerance, self._version = tolerance, version
        self._parts, self._batches = [], []
        self.numbers = None

    def note(self, batch: TokenBatch, ours: Tensor, theirs: Tensor, mask: Tensor) -> None:
        """Take what a micro-batch gave.

        Args:
            batch: its sequences.
            ours: log-probabilities by the policy as it is, `[R]`.
            theirs: by the engine, `[R]`.
            mask: which tokens count, bool `[R]`.
        """
        if self._tolerance is None:
            return
        fresh = mask & (batch.versions.to(mask.device) == self._version)
        part = logprob_gap(ours, theirs, fresh)
        part["compared"] = MetricSum.of(fresh.sum(), mask.sum())
        self._parts.append(part)
        self._batches.append(batch)

    def before_step(self, rows: Tensor) -> None:
        """Let the first optimiser step happen, or not; all ranks call it.

        Raises:
            TooFarApart: the numbers differ by more than the tolerance. What the micro-batches gave
                is still there for `received`.
        """
        if self._tolerance is None:
            return
        engine = self._engine
        numbers = reduce_metrics(
            merge_metrics(self._parts), engine.all_reduce, engine.all_reduce_max
        )
        self.numbers = {"compared": 0.0, **numbers}
        too_far = self._tolerance.exceeded(numbers)
        self._tolerance, self._parts = None, []
        if too_far:
            engine.drop_gradients()
            raise TooFarApart(too_far)
        self._batches = []

    def after_step(self) -> None:
        """Nothing is left to do."""

    def received(self) -> dict[Place, dict[str, int]]:
        """Return the checksums of the responses that were compared; see `received_responses`."""
        table: dict[Place, dict[str, int]] = {}
        for batch in self._batches:
            table |= received_responses(batch)
        return table
