"""What every training loop has: steps, metrics, evaluations, checkpoints and a summary."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from abc import ABC, abstractmethod
from typing import Any

from omegaconf import OmegaConf

from rlinf.config import to_plain
from rlinf.runners.checkpoints import RunCheckpoints
from rlinf.runners.farewell import go_on_command
from rlinf.runners.requests import RunRequests
from rlinf.runners.run_folder import (
    begin_run,
    checkpoint_folder,
    end_run,
    is_begun,
    run_folder,
    with_runner_keys,
)
from rlinf.runners.run_progress import run_progress
from rlinf.runners.run_summary import begin_summary
from rlinf.runners.stop import StopSignals, is_stop
from rlinf.scheduler import Cluster, WorkerDied, WorkerGroup
from rlinf.scheduler.peak_memory import largest_by_group
from rlinf.scheduler.trace import mark_step
from rlinf.utils.checkpoint import MANIFEST, Checkpoint
from rlinf.utils.metric_logger import MetricLogger
from rlinf.utils.phases import phases
from rlinf.utils.progress import Progress
from rlinf.utils.runs.summary import EVALUATED, FAILED, FINISHED, RUNNING, STOPPED

_FAILURES = "train/checkpoint_failures"
_CHEAP = 0.25
"""Share of the training that an evaluation before it may cost, unless the config asks for it."""
_SUMMARY_SECONDS = 10.0
"""How old the summary of a run that is under way may be, in steps that are shorter than that."""


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
        if self._ends_run:
            phases.begin(cfg.runner.progress)
        self.folder = run_folder(cfg)
        # As it would be given for another run like this one.
        again = to_plain(with_runner_keys(cfg, run_dir=None, resume_dir=None))
        saved = OmegaConf.to_yaml(OmegaConf.create(again))
        (self.folder / "config.yaml").write_text(saved)
        self.summary = begin_summary(cfg)
        self.logger = MetricLogger(self.folder, cfg.runner.logger)
        self.requests = RunRequests(self.folder)
        self.files = Cluster.current().files
        self.files.mark(self.folder)
        self.checkpoints = RunCheckpoints(
            cfg, checkpoint_folder(cfg), groups, self.comes_back, self.files.collect
        )
        resume_dir = cfg.runner.resume_dir
        # Whoever has chosen it has compared the hashes.
        self._resumed = None if resume_dir is None else Checkpoint.open(resume_dir, verify=False)
        self.global_step = 0
        self._initial_evaluation: dict[str, float] | None = None
        self._evaluation: dict[str, float] | None = None
        self._evaluated_at: int | None = None
        self._train_begin: float | None = None
        self._train_end: float | None = None
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
        self.checkpoints.restore(checkpoint, "evaluating")

    def prepare_training(self) -> None:  # noqa: B027 - most runners have nothing to prepare
        """Do what comes before the first step of a new run."""

    def in_flight(self) -> list[str]:
        """Return, in words, what is under way and part of no checkpoint."""
        return []

    def evaluation_cost(self) -> float | None:
        """Return what an evaluation costs, as a share of the training; None if there is none."""
        return None

    def final_evaluation(self) -> dict[str, float]:
        """Return the evaluation at the end; empty if there is none.

        A policy that has just been evaluated is not evaluated again.
        """
        if self._evaluation is not None and self._evaluated_at == self.global_step:
            return self._evaluation
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
        with phases.phase("build"):
            self.build_workers()
        only_eval = self.cfg.runner.only_eval
        if self._resumed is not None:
            with phases.phase("load"):
                state = self._load(self._resumed)
            if not only_eval:
                self.summary.write(
                    resumed_from=str(self._resumed.path),
                    not_restored=self.checkpoints.not_restored,
                )
            self.global_step = state.pop("global_step")
            initial = state.pop("initial_evaluation", None)
            self._initial_evaluation = None if only_eval else initial
            self.load_state(state)
        if only_eval:
            # The checkpoints and metrics of the training are not ours to touch.
            self.logger.start(-1)
            return
        self.checkpoints.set_aside(after=self.global_step)
        self.logger.start(self.global_step)

    def _load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Bring the workers to a checkpoint, or only the policy; return the runner's own state."""
        self.files.deliver(checkpoint.path, MANIFEST)
        try:
            if not self.cfg.runner.only_eval:
                return self.checkpoints.restore(checkpoint)
            self.load_policy(checkpoint)
            return checkpoint.runner_state()
        finally:
            self.files.drop(checkpoint.path)

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
        try:
            if not self.cfg.runner.only_eval:
                if self.global_step == 0:
                    self.prepare_training()
                    self._evaluate_at_start()
                with StopSignals() as stop:
                    with phases.phase("training", live=False):
                        self._train(stop)
                    with phases.phase("save"):
                        self._complete_checkpoints()
                    stop.check()
            final = self.final_evaluation()
            if final and self._evaluated_at != self.global_step:
                self._note_evaluation(final)
            with phases.phase("stop"):
                self.end_services()
        except BaseException as error:
            self.checkpoints.settle()
            if is_stop(error):
                self._tell_stop()
            else:
                self._write_summary(FAILED, error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.requests.close()
            self.logger.close()
        memory = largest_by_group(Cluster.current().peak_memory())
        status = EVALUATED if self.cfg.runner.only_eval else FINISHED
        self._write_summary(status, peak_memory=memory)
        self.farewell(final)
        return self.summary.facts

    # -- evaluations ----------------------------------------------------------------------------

    def _evaluate_at_start(self) -> None:
        """Evaluate the policy that training begins with, if that is asked for, or cheap."""
        wanted = self.cfg.runner.eval_at_start
        if wanted is None:
            cost = self.evaluation_cost()
            wanted = cost is not None and cost <= _CHEAP
        if wanted:
            # It ranks no checkpoints: those are of later policies.
            with phases.phase("initial_evaluation"):
                self._initial_evaluation = self.evaluate()
            self.logger.log(self._initial_evaluation, self.global_step)

    def _note_evaluation(self, found: dict[str, float]) -> None:
        self._evaluation, self._evaluated_at = found, self.global_step
        self._scores |= found
        self.logger.log(found, self.global_step)

    # -- what is remembered ---------------------------------------------------------------------

    def _write_summary(self, status: str, **facts: Any) -> None:
        known = self.checkpoints.store.all()
        newest = str(known[-1].path) if known else self.cfg.runner.resume_dir
        self.summary.write(
            status=status,
            checkpoint=newest,
            evaluation=self._evaluation,
            evaluation_step=self._evaluated_at,
            phases=dict(phases.seconds),
            **self._counts(),
            **self._totals(),
            **facts,
        )

    def _totals(self) -> dict[str, Any]:
        """Return what the training took, as far as there was any."""
        if self._train_begin is None:
            return {}
        seconds = (self._train_end or time.perf_counter()) - self._train_begin
        return {
            "training_seconds": round(seconds, 3),
            "checkpoint_failures": self.checkpoints.failures,
            "not_saved": self.checkpoints.not_saved,
            **self.totals(seconds),
        }

    def _tell_stop(self) -> None:
        """Say how to go on with a run that was stopped."""
        self._write_summary(STOPPED)
        if self.cfg.runner.only_eval:
            return
        said = f"stopped after step {self.global_step}"
        if self.checkpoints.store.all():
            said += f"; go on with\n  {go_on_command(self.folder, self.summary.facts)}"
        else:
            said += ", before there was anything to go on from"
        # The terminal may be gone.
        with contextlib.suppress(OSError):
            print(said, flush=True)

    # -- training -------------------------------------------------------------------------------

    def _train(self, stop: StopSignals) -> None:
        self._train_begin = noted = time.perf_counter()
        progress = run_progress(self.max_steps, self.cfg.runner.progress)
        try:
            self._look_for_requests(stop)
            stop.check()
            while self.global_step < self.max_steps:
                begin = time.perf_counter()
                metrics = self.train_step()
                self.global_step += 1
                seconds = time.perf_counter() - begin
                mark_step(self.global_step, begin)
                self._report(progress, metrics, seconds)
                self._look_for_requests(stop)
                evaluating = self._due(self.cfg.runner.val_check_interval)
                if evaluating and stop.requested is None:
                    self._note_evaluation(self.evaluate())
                # Look once: a signal that comes after this is heeded at the end of the next step.
                stopping = stop.requested is not None
                self._save_if_due(stopping)
                if stopping:
                    self.checkpoints.poll(wait=True)
                self._answer_requests()
                if stopping:
                    stop.check()
                if time.perf_counter() - noted > _SUMMARY_SECONDS:
                    self._write_summary(RUNNING)
                    noted = time.perf_counter()
        finally:
            self._train_end = time.perf_counter()
            progress.close()

    def _complete_checkpoints(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        self.checkpoints.poll(wait=True)
        self._answer_requests()
        if self.checkpoints.failures > self._scores.get(_FAILURES, 0.0):
            self.logger.log({_FAILURES: float(self.checkpoints.failures)}, self.global_step)

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
        due = self._due(interval) or (last and (interval > 0 or self.cfg.runner.save_last))
        if due or self.requests.checkpoint:
            self.requests.begin_save(self.global_step)
            known = (self._scores[name] for name in self._best_metric if name in self._scores)
            self.checkpoints.save(
                self.global_step, self._counts(), next(known, None), self.in_flight()
            )
        else:
            self.checkpoints.poll()

    def _look_for_requests(self, stop: StopSignals) -> None:
        """Take what others have asked for meanwhile."""
        self.requests.look()
        if self.requests.stop and stop.requested is None:
            print("stopping after this step, as was asked for", file=sys.stderr, flush=True)
            stop.request(signal.SIGTERM)

    def _answer_requests(self) -> None:
        """Tell those who have asked for a checkpoint what came of it."""
        step = self.requests.saving
        if step is not None and not self.checkpoints.saving:
            found = [known.path for known in self.checkpoints.store.all() if known.step == step]
            self.requests.end_save(found[0] if found else None)

    def _due(self, interval: int) -> bool:
        return interval > 0 and self.global_step % interval == 0

    def _counts(self) -> dict[str, Any]:
        return {
            "global_step": self.global_step,
            "initial_evaluation": self._initial_evaluation,
            **self.state(),
        }
