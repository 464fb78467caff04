"""The embodied training loop: sync weights, roll out, compute advantages, update."""

from __future__ import annotations

import math
import time
from typing import Any

from rlinf.runners.checkpoints import RunCheckpoints
from rlinf.runners.rollout_retry import RolloutRetry
from rlinf.runners.run_folder import RunSummary, run_folder
from rlinf.scheduler import WorkerGroup, wait_all
from rlinf.scheduler.trace import mark_step
from rlinf.utils.env_spec import rollout_steps
from rlinf.utils.metric_logger import MetricLogger
from rlinf.utils.progress import Progress
from rlinf.workers.env.env_worker import max_env_restarts


class EmbodiedRunner:
    """Drives actor, rollout and env groups through training.

    Args:
        cfg: checked configuration.
        actor: group of `EmbodiedFSDPActor`.
        rollout: group of `MultiStepRolloutWorker`.
        env: group of `EnvWorker`.
    """

    def __init__(self, cfg: Any, actor: WorkerGroup, rollout: WorkerGroup, env: WorkerGroup):
        self.cfg = cfg
        self.actor = actor
        self.rollout = rollout
        self.env = env
        self.retry = RolloutRetry(env, [rollout, actor], max_env_restarts(cfg))
        self.folder = run_folder(cfg)
        self.summary = RunSummary(self.folder, cfg)
        self.logger = MetricLogger(self.folder, cfg.runner.logger)
        self.checkpoints = RunCheckpoints(cfg, self.folder, [actor, rollout, env])
        # Told now, if it is not there or of another run, and not when all simulators are built.
        self._resumed = self.checkpoints.find()
        self.global_step = 0
        self.env_steps = 0
        self._scores: dict[str, float] = {}
        limits = [n for n in (cfg.runner.max_epochs, cfg.runner.max_steps) if n > 0]
        if not limits and not cfg.runner.only_eval:
            raise ValueError("set runner.max_epochs or runner.max_steps: the run has no end")
        self.max_steps = min(limits, default=0)

    def init_workers(self) -> None:
        """Builds simulators, policies and optimisers."""
        (env_futures,) = self.retry.play(lambda: (self.env.init_worker(),))
        spec = env_futures.wait()[0]
        if not self.cfg.runner.only_eval:
            train = self.cfg.env.train
            steps = rollout_steps(train, spec.train_steps)
            self.steps_per_rollout = train.total_num_envs * train.rollout_epoch * steps
        wait_all(
            self.rollout.init_worker(spec), self.actor.init_worker(spec, self._optimiser_steps())
        )
        if self._resumed is not None:
            state = self.checkpoints.restore(self._resumed)
            self.global_step, self.env_steps = state["global_step"], state["env_steps"]
            self.retry.restarts = state["env_restarts"]
        self.checkpoints.set_aside(after=self.global_step)
        self.logger.start(self.global_step)

    def _optimiser_steps(self) -> int:
        if self.cfg.runner.only_eval:
            return 1
        algorithm = self.cfg.algorithm
        samples = self.steps_per_rollout // self.cfg.actor.model.num_action_chunks
        batch = self.cfg.actor.global_batch_size or samples
        return self.max_steps * algorithm.update_epoch * max(1, samples // batch)

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Trains, evaluates, and returns the summary; `runner.only_eval` leaves training out."""
        if self.cfg.runner.only_eval:
            return self._only_evaluate()
        progress = Progress(self.max_steps, self.cfg.runner.progress)
        begin = time.perf_counter()
        rollout_seconds = 0.0
        try:
            while self.global_step < self.max_steps:
                step_begin = time.perf_counter()
                if self.global_step % self.cfg.runner.weight_sync_interval == 0:
                    self.update_rollout_weights()
                env_metrics, times = self.generate_rollouts()
                rollout_seconds += times["time/generate_rollouts"]
                metrics = self.learn()
                self.global_step += 1
                seconds = time.perf_counter() - step_begin
                mark_step(self.global_step, step_begin)
                self._report(progress, env_metrics | times | metrics, seconds)
                if self._due(self.cfg.runner.val_check_interval):
                    self._log_evaluation(self.evaluate())
                self._save_if_due()
            training_seconds = time.perf_counter() - begin
            self.checkpoints.poll(wait=True)
            final = self._final_evaluation()
        except BaseException as error:
            self.summary.write(
                status="failed", error=f"{type(error).__name__}: {error}", **self._counts()
            )
            raise
        finally:
            progress.close()
            self.logger.close()
        return self._finish(final, training_seconds, rollout_seconds)

    def update_rollout_weights(self) -> None:
        """Brings the actor's weights to the rollout workers."""
        rollout_futures = self.rollout.sync_model_from_actor()
        actor_futures = self.actor.sync_model_to_rollout()
        wait_all(actor_futures, rollout_futures)

    def generate_rollouts(self) -> tuple[dict[str, float], dict[str, float]]:
        """Lets env and rollout play while the actor receives; returns metrics and times."""
        begin = time.perf_counter()
        env_futures, rollout_futures, _ = self.retry.play(
            lambda: (
                self.env.interact(),
                self.rollout.generate(),
                self.actor.recv_rollout_batch(),
            )
        )
        results = env_futures.wait()
        times = {"time/generate_rollouts": time.perf_counter() - begin}
        for role, futures in (("env", env_futures), ("rollout", rollout_futures)):
            for tag, seconds in futures.consume_durations().items():
                times[f"time/{role}/{tag}"] = seconds
        self.env_steps += sum(result["env_steps"] for result in results)
        metrics = _merge_episodes(results, "env")
        metrics["env/restarts"] = metrics.get("env/restarts", 0.0) + self.retry.restarts
        return metrics, times

    def learn(self) -> dict[str, float]:
        """Computes advantages and updates the policy; returns metrics."""
        begin = time.perf_counter()
        rollout = self.actor.compute_advantages_and_returns().wait()[0]
        middle = time.perf_counter()
        training = self.actor.run_training()
        train = training.wait()[0]
        metrics = {f"rollout/{name}": value for name, value in rollout.items()}
        metrics |= {f"train/{name}": value for name, value in train.items()}
        metrics["time/advantages"] = middle - begin
        metrics["time/training"] = time.perf_counter() - middle
        for tag, seconds in training.consume_durations().items():
            metrics[f"time/actor/{tag}"] = seconds
        return metrics

    def _save_if_due(self) -> None:
        """Begins a checkpoint, or completes the one that is being written."""
        runner = self.cfg.runner
        last = self.global_step == self.max_steps
        if runner.save_interval > 0 and (last or self._due(runner.save_interval)):
            best = runner.best_metric or "eval/success_once"
            score = self._scores.get(best, self._scores.get("env/success_once"))
            self.checkpoints.save(self.global_step, self._counts(), score)
        else:
            self.checkpoints.poll()

    def _log_evaluation(self, metrics: dict[str, float]) -> None:
        self._scores |= metrics
        self.logger.log(metrics, self.global_step)

    def _due(self, interval: int) -> bool:
        return interval > 0 and self.global_step % interval == 0

    def _report(self, progress: Progress, metrics: dict[str, float], seconds: float) -> None:
        metrics["time/step"] = seconds
        speed = self.steps_per_rollout / seconds
        metrics["env/steps_per_second"] = speed
        metrics["env/total_steps"] = float(self.env_steps)
        metrics["checkpoint/failures"] = float(self.checkpoints.failures)
        self._scores |= metrics
        if self.global_step % self.cfg.runner.log_interval == 0:
            self.logger.log(metrics, self.global_step)
        facts = {"env steps": f"{self.env_steps:,}"}
        if "env/success_once" in metrics:
            facts["success"] = f"{metrics['env/success_once']:.0%}"
        if "env/return" in metrics:
            facts["return"] = f"{metrics['env/return']:.1f}"
        facts["speed"] = f"{speed:,.0f}/s"
        progress.show(self.global_step, facts)

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Plays fresh episodes without noise; returns metrics with the number of episodes."""
        self.update_rollout_weights()
        envs = self.cfg.env.eval.total_num_envs
        rounds = math.ceil(self.cfg.runner.eval_episodes / envs)
        env_futures, _ = self.retry.play(
            lambda: (self.env.evaluate(rounds), self.rollout.evaluate(rounds))
        )
        return _merge_episodes(env_futures.wait(), "eval")

    def _only_evaluate(self) -> dict[str, Any]:
        if self.cfg.env.eval is None:
            raise ValueError("runner.only_eval needs an env.eval section, and there is none")
        try:
            final = self._final_evaluation()
        except BaseException as error:
            self.summary.write(status="failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.logger.close()
        path = self.summary.write(status="evaluated", evaluation=final, **self._counts())
        count = int(final["eval/episodes"])
        print(f"evaluated success {final['eval/success_once']:.1%} over {count} fresh episodes")
        print(f"everything is in {path.parent}")
        return self.summary.facts

    def _final_evaluation(self) -> dict[str, float]:
        if self.cfg.env.eval is None:
            return {}
        metrics = self.evaluate()
        self.logger.log(metrics, self.global_step)
        if self.cfg.env.eval.video_cfg.save_video:
            path = str(self.folder / "policy.mp4")
            fps = self.cfg.env.eval.video_cfg.fps
            env_futures, _ = self.retry.play(
                lambda: (self.env.record(path, fps), self.rollout.evaluate(1))
            )
            self.summary.facts["video"] = env_futures.wait()[0]
        return metrics

    def _counts(self) -> dict[str, Any]:
        return {
            "global_step": self.global_step,
            "env_steps": self.env_steps,
            "env_restarts": self.retry.restarts,
        }

    def _finish(
        self, final: dict[str, float], training_seconds: float, rollout_seconds: float
    ) -> dict[str, Any]:
        path = self.summary.write(
            status="finished",
            evaluation=final,
            training_seconds=round(training_seconds, 3),
            env_steps_per_second=round(self.env_steps / training_seconds, 1),
            env_steps_per_second_in_rollout=round(self.env_steps / rollout_seconds, 1),
            **self._counts(),
        )
        if final:
            count = int(final["eval/episodes"])
            print(f"evaluated success {final['eval/success_once']:.1%} over {count} fresh episodes")
        if "video" in self.summary.facts:
            print(f"video: {self.summary.facts['video']}")
        another = {
            "metaworld": "another task, for instance with env.train.task=reach-v3",
            "gymnasium": "another id, for instance with env.train.id=Walker2d-v5",
        }.get(self.cfg.env.train.env_type, "another recipe, of those in rlinf train --list")
        print(
            f"everything is in {path.parent}; curves: tensorboard --logdir {path.parent}; "
            f"next: {another}"
        )
        return self.summary.facts


def _merge_episodes(results: list[dict[str, Any]], prefix: str) -> dict[str, float]:
    """Means over all episodes of all workers, and how many there were."""
    count = sum(result["episodes"] for result in results)
    out = {f"{prefix}/episodes": float(count)}
    if count:
        for key in results[0]["sums"] or next(r["sums"] for r in results if r["sums"]):
            out[f"{prefix}/{key}"] = sum(r["sums"].get(key, 0.0) for r in results) / count
    for result in results:
        for key, value in result["counters"].items():
            out[f"{prefix}/{key}"] = out.get(f"{prefix}/{key}", 0.0) + value
    return out
