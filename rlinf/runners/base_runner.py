"""What every training loop has: steps, metrics, evaluations, checkpoints and a summary."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from typing import Any

from omegaconf import OmegaConf

from rlinf.config import to_plain
from rlinf.runners.checkpoints import RunCheckpoints
from rlinf.runners.run_folder import (
    begin_run,
    checkpoint_folder,
    end_run,
    is_begun,
    recipe_name,
    run_folder,
    versions,
    with_runner_keys,
)
from rlinf.runners.run_progress import run_progress
from rlinf.runners.stop import StopSignals, is_stop
from rlinf.scheduler import WorkerDied, WorkerGroup
from rlinf.scheduler.trace import mark_step
from rlinf.utils.checkpoint import Checkpoint
from rlinf.utils.metric_logger import MetricLogger
from rlinf.utils.progress import Progress
from rlinf.utils.runs import RunSummary
from rlinf.utils.runs.folders import shown
from rlinf.utils.runs.summary import EVALUATED, FAILED, FINISHED, STOPPED

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
        self._ends_run = not is_begun(cfg)
        self.cfg = cfg = begin_run(cfg)
        self.folder = run_folder(cfg)
        # As it would be given for another run like this one.
        again = to_plain(with_runner_keys(cfg, run_dir=None, resume_dir=None))
        saved = OmegaConf.to_yaml(OmegaConf.create(again))
        (self.folder / "config.yaml").write_text(saved)
        self.summary = RunSummary(
            self.folder, recipe=recipe_name(cfg), seed=cfg.runner.seed, versions=versions()
        )
        self.logger = MetricLogger(self.folder, cfg.runner.logger)
        self.checkpoints = RunCheckpoints(cfg, checkpoint_folder(cfg), groups, self.comes_back)
        resume_dir = cfg.runner.resume_dir
        # Whoever has chosen it has compared the hashes.
        self._resumed = None if resume_dir is None else Checkpoint.open(resume_dir, verify=False)
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
        """Train, evaluate, and return the summary; `runner.only_eval` leaves training out.

        Raises:
            RunStopped: a signal stopped the run; what was done is saved.
        """
        try:
            return self._run()
        finally:
            if self._ends_run:
                end_run(self.folder)

    def _run(self) -> dict[str, Any]:
        begin = time.perf_counter()
        try:
            if not self.cfg.runner.only_eval:
                with StopSignals() as stop:
                    self._train(stop)
            training_seconds = time.perf_counter() - begin
            final = self.final_evaluation()
            if final and self._evaluated_at != self.global_step:
                self.logger.log(final, self.global_step)
            self.end_services()
        except BaseException as error:
            self.checkpoints.settle()
            if is_stop(error):
                self._tell_stop(time.perf_counter() - begin)
            else:
                self._write_summary(FAILED, error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.logger.close()
        if self.cfg.runner.only_eval:
            self._write_summary(EVALUATED, evaluation=final)
        else:
            self._write_summary(FINISHED, evaluation=final, **self._totals(training_seconds))
        self.farewell(final)
        return self.summary.facts

    def _write_summary(self, status: str, **facts: Any) -> None:
        known = self.checkpoints.store.all()
        newest = str(known[-1].path) if known else self.cfg.runner.resume_dir
        self.summary.write(status=status, checkpoint=newest, **self._counts(), **facts)

    def _totals(self, training_seconds: float) -> dict[str, Any]:
        return {
            "training_seconds": round(training_seconds, 3),
            "checkpoint_failures": self.checkpoints.failures,
            "not_saved": self.checkpoints.not_saved,
            **self.totals(training_seconds),
        }

    def _tell_stop(self, training_seconds: float) -> None:
        """Say how to go on with a run that was stopped."""
        if self.cfg.runner.only_eval:
            self._write_summary(STOPPED)
            return
        self._write_summary(STOPPED, **self._totals(training_seconds))
        said = f"stopped after step {self.global_step}"
        if self.checkpoints.store.all():
            recipe = self.summary.facts["recipe"]
            said += f"; go on with\n  rlinf train {recipe} runner.run_dir={shown(self.folder)} "
            said += "runner.resume_dir=auto"
        else:
            said += ", before there was anything to go on from"
        # The terminal may be gone.
        with contextlib.suppress(OSError):
            print(said, flush=True)

    def _train(self, stop: StopSignals) -> None:
        progress = run_progress(self.max_steps, self.cfg.runner.progress)
        try:
            while self.global_step < self.max_steps:
                begin = time.perf_counter()
                metrics = self.train_step()
                self.global_step += 1
                seconds = time.perf_counter() - begin
                mark_step(self.global_step, begin)
                self._report(progress, metrics, seconds)
                stopping = stop.requested is not None
                if self._due(self.cfg.runner.val_check_interval) and not stopping:
                    found = self.evaluate()
                    self._evaluated_at = self.global_step
                    self._scores |= found
                    self.logger.log(found, self.global_step)
                self._save_if_due(stop.requested is not None)
                if stop.requested is not None:
                    self.checkpoints.poll(wait=True)
                stop.check()
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

    def _save_if_due(self, stopping: bool) -> None:
        """Begin a checkpoint, or complete the one that is being written."""
        interval = self.cfg.runner.save_interval
        last = stopping or self.global_step == self.max_steps
        if self._due(interval) or (last and (interval > 0 or self.cfg.runner.save_last)):
            known = (self._scores[name] for name in self._best_metric if name in self._scores)
            self.checkpoints.save(self.global_step, self._counts(), next(known, None))
        else:
            self.checkpoints.poll()

    def _due(self, interval: int) -> bool:
        return interval > 0 and self.global_step % interval == 0

    def _counts(self) -> dict[str, Any]:
        return {"global_step": self.global_step, **self.state()}
