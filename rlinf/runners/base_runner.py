"""What every training loop has: steps, metrics, evaluations, checkpoints and a summary."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from rlinf.runners.checkpoints import RunCheckpoints
from rlinf.runners.run_folder import RunSummary, checkpoint_folder, run_folder
from rlinf.runners.run_progress import run_progress
from rlinf.scheduler import WorkerDied, WorkerGroup
from rlinf.scheduler.trace import mark_step
from rlinf.utils.checkpoint import Checkpoint
from rlinf.utils.metric_logger import MetricLogger
from rlinf.utils.progress import Progress

_FAILURES = "train/checkpoint_failures"


class BaseRunner(ABC):
    """Drives worker groups through training, one global step after the other.

    A runner of a task says how to build the workers, what a step is, and how to evaluate.

    Args:
        cfg: checked configuration.
        groups: groups whose workers are `Checkpointed`.
        best_metric: names of metrics that rank checkpoints unless `runner.best_metric` does; the
            first that is known counts.
    """

    def __init__(self, cfg: Any, groups: list[WorkerGroup], best_metric: tuple[str, ...]):
        self.cfg = cfg
        self.folder = run_folder(cfg)
        self.summary = RunSummary(self.folder, cfg)
        self.logger = MetricLogger(self.folder, cfg.runner.logger)
        self.checkpoints = RunCheckpoints(cfg, checkpoint_folder(cfg), groups, self.comes_back)
        # Told now, if it is not there or of another run, and not when all workers are built.
        self._resumed = self.checkpoints.find()
        self.global_step = 0
        self._evaluated_at: int | None = None
        self._scores: dict[str, float] = {}
        self._best_metric = (cfg.runner.best_metric,) if cfg.runner.best_metric else best_metric

    # -- what a task says ---------------------------------------------------------------------

    max_steps: int
    """Global steps of the whole run; set by `build_workers` at the latest."""

    @abstractmethod
    def build_workers(self) -> None:
        """Let the workers build what they work with."""

    @abstractmethod
    def train_step(self) -> dict[str, float]:
        """Make one global step; return its metrics."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Evaluate the policy as it is; return metrics under `eval/`."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what the runner itself has to remember besides the global step, plain data."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""

    @abstractmethod
    def headline(self, metrics: dict[str, float]) -> dict[str, str]:
        """Return what the terminal shows of a step, by name."""

    def comes_back(self, death: WorkerDied) -> bool:
        """Return whether a worker that died is started again and the run goes on."""
        return False

    def load_policy(self, checkpoint: Checkpoint) -> None:
        """Take what an evaluation needs from a checkpoint; unless a task knows better, all."""
        self.checkpoints.restore(checkpoint)

    def final_evaluation(self) -> dict[str, float]:
        """Return the evaluation at the end; empty if there is none."""
        return self.evaluate()

    def end_services(self) -> None:  # noqa: B027 - most runners have none
        """End what runs beside the steps, after the last evaluation."""

    @abstractmethod
    def totals(self, training_seconds: float) -> dict[str, Any]:
        """Return what the summary says of the training as a whole."""

    @abstractmethod
    def farewell(self, final: dict[str, float]) -> None:
        """Tell the user what came out and what to try next."""

    # -- the loop -------------------------------------------------------------------------------

    def init_workers(self) -> None:
        """Build the workers and bring them to the checkpoint to go on from, if there is one."""
        self.build_workers()
        only_eval = self.cfg.runner.only_eval
        if self._resumed is not None:
            if only_eval:
                self.load_policy(self._resumed)
                state = self._resumed.runner_state()
            else:
                state = self.checkpoints.restore(self._resumed)
                self.summary.write(
                    resumed_from=str(self._resumed.path),
                    not_restored=self.checkpoints.not_restored,
                )
            self.global_step = state.pop("global_step")
            self.load_state(state)
        if only_eval:
            # The checkpoints and metrics of the training are not ours to touch.
            self.logger.start(-1)
            return
        self.checkpoints.set_aside(after=self.global_step)
        self.logger.start(self.global_step)

    def run(self) -> dict[str, Any]:
        """Train, evaluate, and return the summary; `runner.only_eval` leaves training out."""
        begin = time.perf_counter()
        try:
            if not self.cfg.runner.only_eval:
                self._train()
            training_seconds = time.perf_counter() - begin
            final = self.final_evaluation()
            if final and self._evaluated_at != self.global_step:
                self.logger.log(final, self.global_step)
            self.end_services()
        except BaseException as error:
            self.checkpoints.settle()
            said = f"{type(error).__name__}: {error}"
            self.summary.write(status="failed", error=said, **self._counts())
            raise
        finally:
            self.logger.close()
        totals = {"evaluation": final, **self._counts()}
        if self.cfg.runner.only_eval:
            self.summary.write(status="evaluated", **totals)
        else:
            totals["training_seconds"] = round(training_seconds, 3)
            totals["checkpoint_failures"] = self.checkpoints.failures
            totals["not_saved"] = self.checkpoints.not_saved
            self.summary.write(status="finished", **totals, **self.totals(training_seconds))
        self.farewell(final)
        return self.summary.facts

    def _train(self) -> None:
        progress = run_progress(self.max_steps, self.cfg.runner.progress)
        try:
            while self.global_step < self.max_steps:
                begin = time.perf_counter()
                metrics = self.train_step()
                self.global_step += 1
                seconds = time.perf_counter() - begin
                mark_step(self.global_step, begin)
                self._report(progress, metrics, seconds)
                if self._due(self.cfg.runner.val_check_interval):
                    found = self.evaluate()
                    self._evaluated_at = self.global_step
                    self._scores |= found
                    self.logger.log(found, self.global_step)
                self._save_if_due()
            self.checkpoints.poll(wait=True)
            if self.checkpoints.failures > self._scores.get(_FAILURES, 0.0):
                self.logger.log({_FAILURES: float(self.checkpoints.failures)}, self.global_step)
        finally:
            progress.close()

    def _report(self, progress: Progress, metrics: dict[str, float], seconds: float) -> None:
        metrics["time/step"] = seconds
        metrics[_FAILURES] = float(self.checkpoints.failures)
        self._scores |= metrics
        if self._due(self.cfg.runner.log_interval):
            self.logger.log(metrics, self.global_step)
        progress.show(self.global_step, self.headline(metrics))

    def _save_if_due(self) -> None:
        """Begin a checkpoint, or complete the one that is being written."""
        interval = self.cfg.runner.save_interval
        last = self.global_step == self.max_steps
        if interval > 0 and (last or self._due(interval)):
            known = (self._scores[name] for name in self._best_metric if name in self._scores)
            self.checkpoints.save(self.global_step, self._counts(), next(known, None))
        else:
            self.checkpoints.poll()

    def _due(self, interval: int) -> bool:
        return interval > 0 and self.global_step % interval == 0

    def _counts(self) -> dict[str, Any]:
        return {"global_step": self.global_step, **self.state()}
