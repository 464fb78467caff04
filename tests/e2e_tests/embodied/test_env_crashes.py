"""Env processes that crash: they come back, or the run ends and says which of them it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import WorkerDied
from rlinf.scheduler.cluster.shutdown import runs
from rlinf.workers.checkpointed import Job
from rlinf.workers.env.acting_env_worker import ActingEnvWorker
from rlinf.workers.env.env_worker import EnvWorker
from tests.e2e_tests.embodied.workers import Rollout

SHORT = [
    "env.train.id=Pendulum-v1",
    "env.train.max_steps_per_rollout_epoch=20",
    "env.eval.max_episode_steps=20",
    "env.eval.total_num_envs=4",
    "runner.eval_episodes=4",
    "actor.global_batch_size=80",
    "algorithm.update_epoch=1",
    "runner.eval_at_start=false",
]


class Mortal:
    """Kills itself on a plan.

    Args:
        cfg: configuration.
        plan: for each rank, when its lives end, one after the other: before it receives so many
            actions, or at 0 before it makes its simulators.
    """

    def __init__(self, cfg: Any, plan: dict[int, list[int]]) -> None:
        super().__init__(cfg)
        ends = plan.get(self._rank, [])[self.restarts :]
        self._left = ends[0] if ends else -1

    @classmethod
    def restart_policy(cls, cfg: Any, plan: Any) -> str | dict[str, int]:
        return super().restart_policy(cfg)

    def init_worker(self) -> Any:
        self._live()
        return super().init_worker()

    def _recv_actions(self, *args: int) -> torch.Tensor:
        self._live()
        return super()._recv_actions(*args)

    def _ask(self, obs: dict[str, Any]) -> torch.Tensor:
        self._live()
        return super()._ask(obs)

    def _snapshot(self, folder: Path) -> Job:
        # Whoever is going to die has not written its part by then.
        return threading.Event().wait if self._left >= 0 else super()._snapshot(folder)

    def _live(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def seeds(self) -> list[int]:
        return [env.seed for env in self._train]


class MortalEnv(Mortal, EnvWorker):
    pass


class MortalActingEnv(Mortal, ActingEnvWorker):
    pass


def make_runner(runners, tmp_path, plan: dict[int, list[int]], *overrides: str) -> EmbodiedRunner:
    workers = {"env": (MortalEnv, (plan,)), "rollout": (Rollout, ())}
    return runners.runner(tmp_path, "gymnasium_ppo_mlp", [*SHORT, *overrides], workers)


def pids_of(runner: EmbodiedRunner) -> list[int]:
    return [info.pid for info in runner.env.worker_info_list]


@pytest.mark.timeout(180)
def test_a_run_survives_the_crash_of_one_of_two_env_processes(runners, tmp_path):
    placement = "cluster.component_placement={actor:0,rollout:2,env:0-1}"
    more = [placement, "rollout.pipeline_stage_num=2", "runner.max_epochs=3"]
    more += ["runner.save_interval=1"]
    # Each of two stages receives 20 actions in a rollout, so this is in the second.
    runner = make_runner(runners, tmp_path, {1: [50]}, *more)
    seeds, pids = runner.env.seeds().wait(), pids_of(runner)
    summary = runner.run()
    assert summary["status"] == "finished" and summary["env_restarts"] == 1
    assert summary["env_steps"] == 3 * 16 * 20, "only the rollout that went well counts"
    text = (runner.folder / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()[:3]]
    assert [line["env/restarts"] for line in lines] == [0.0, 1.0, 1.0]
    assert all("train/actor/policy_loss" in line for line in lines)
    # The checkpoint that it was writing has no part of it; it is told of, and is not there.
    assert [line["train/checkpoint_failures"] for line in lines] == [0.0, 0.0, 1.0]
    assert [checkpoint.step for checkpoint in runner.checkpoints.store.all()] == [2, 3]
    assert summary["checkpoint_failures"] == 1
    assert [old == new for old, new in zip(pids, pids_of(runner), strict=True)] == [True, False]
    assert runner.env.seeds().wait() == seeds


@pytest.mark.timeout(180)
def test_crashes_are_survived_wherever_they_happen_until_the_budget_is_spent(runners, tmp_path):
    # Rank 0 dies at its start; rank 1 in the first rollout, then in evaluation.
    plan = {0: [0], 1: [10, 65]}
    placement = "cluster.component_placement={actor:0-1,rollout:2-3,env:0-1}"
    # Rank 1 has had 40 to 59 actions when evaluation begins, which has 60.
    more = ["env.train.max_restarts=4", "runner.eval_episodes=12"]
    runner = make_runner(runners, tmp_path, plan, placement, *more)
    assert runner.retry.restarts == 1
    runner.update_rollout_weights()
    metrics, _ = runner.generate_rollouts()
    assert metrics["env/restarts"] == 2.0
    assert "actor/policy_loss" in " ".join(runner.learn())
    os.kill(pids_of(runner)[0], signal.SIGKILL)
    runner.update_rollout_weights()
    metrics, _ = runner.generate_rollouts()
    assert metrics["env/restarts"] == 3.0
    assert runner.evaluate()["eval/episodes"] == 12
    assert runner.retry.restarts == 4
    os.kill(pids_of(runner)[1], signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        runner.evaluate()
    assert (caught.value.worker, caught.value.signal) == ("EnvGroup:1", "SIGKILL")


@pytest.mark.timeout(180)
def test_an_env_process_that_acts_comes_back_with_its_policy(runners, tmp_path):
    """All of them crash in the first rollout, so that the retry begins as it did."""
    batches = []
    for plan in ({}, {0: [10], 1: [10]}):
        workers = {"acting": (MortalActingEnv, (plan,))} if plan else {}
        runner = runners.runner(tmp_path, "gymnasium_ppo_mlp", SHORT, workers)
        runner.update_rollout_weights()
        metrics, _ = runner.generate_rollouts()
        assert metrics["env/restarts"] == len(plan)
        batches.append(runner.actor.batch().wait()[0])
    for name, tensor in batches[0].items():
        assert torch.equal(batches[1][name], tensor), name
    runner.learn()
    # One that dies while weights come is there for the rollout, with them.
    os.kill(pids_of(runner)[0], signal.SIGKILL)
    runner.update_rollout_weights()
    metrics, _ = runner.generate_rollouts()
    assert metrics["env/restarts"] == 3 and runner.evaluate()["eval/episodes"] == 4
    assert runner.env.policy_steps().wait() == [40, 40]


@pytest.mark.timeout(180)
def test_a_retried_rollout_is_the_rollout_that_was_interrupted(runners, tmp_path):
    """All env processes crash, so that the retry begins as the first attempt did."""
    batches = []
    for plan in ({}, {0: [10], 1: [10]}):
        if plan:
            runner = make_runner(runners, tmp_path, plan)
        else:
            runner = runners.runner(tmp_path, "gymnasium_ppo_mlp", SHORT)
        runner.update_rollout_weights()
        metrics, _ = runner.generate_rollouts()
        assert metrics["env/restarts"] == len(plan)
        batches.append(runner.actor.batch().wait()[0])
        if plan:
            os.kill(runner.rollout.worker_info_list[0].pid, signal.SIGKILL)
            with pytest.raises(WorkerDied, match="RolloutGroup:0"):
                runner.generate_rollouts()
    for name, tensor in batches[0].items():
        assert torch.equal(batches[1][name], tensor), name


# -- the whole program -----------------------------------------------------------------------------


def metrics_in(folder: Path) -> list[dict[str, float]]:
    files = list(folder.glob("**/metrics.jsonl"))
    return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []


def wait_for(process: subprocess.Popen, condition: Any) -> None:
    deadline = time.monotonic() + 150
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def kill_an_env_process(of: int) -> None:
    for process in psutil.Process(of).children(recursive=True):
        if any("EnvWorker" in part for part in process.cmdline()[:1]):
            process.kill()
            return
    raise AssertionError("there is no env process")


@pytest.mark.timeout(400)
def test_kill_9_twice_with_a_budget_of_one(tmp_path):
    command = [sys.executable, "-m", "rlinf.cli", "train", "gymnasium_ppo_mlp", *SHORT]
    command += [f"runner.logger.log_path={tmp_path}", "env.train.max_restarts=1"]
    process = subprocess.Popen(
        [*command, "runner.max_epochs=100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    wait_for(process, lambda: metrics_in(tmp_path))
    kill_an_env_process(process.pid)
    wait_for(process, lambda: metrics_in(tmp_path)[-1]["env/restarts"] == 1.0)
    everyone = psutil.Process(process.pid).children(recursive=True)
    kill_an_env_process(process.pid)
    output, _ = process.communicate(timeout=150)
    assert process.returncode == 1
    assert "restart 1 of at most 1" in output and output.count("RUN FAILED") == 1
    (path,) = tmp_path.glob("**/failure.json")
    card = json.loads(path.read_text())
    assert card["who"].startswith("EnvGroup:") and "SIGKILL" in card["what"]
    (path,) = tmp_path.glob("**/summary.json")
    assert json.loads(path.read_text())["status"] == "failed"
    deadline = time.monotonic() + 60
    while (alive := [p for p in everyone if runs(p)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive, f"left behind: {alive}"
