"""Rollouts that go on while the learner learns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import new_deaths
from rlinf.utils.checkpoint import CheckpointStore
from rlinf.workers.env.async_acting_env_worker import AsyncActingEnvWorker
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.rollout.async_multi_step_rollout_worker import AsyncMultiStepRolloutWorker
from tests.e2e_tests.embodied.test_env_crashes import SHORT, Mortal, pids_of
from tests.e2e_tests.embodied.workers import Actor

CHUNKS = 20
"""Chunks of a rollout of `SHORT`."""
ALIKE = "cluster.component_placement={actor:0,rollout:1,env:1}"
APART = "cluster.component_placement={actor:0,rollout:2,env:0-1}"
ENVS = {"acting": (AsyncActingEnvWorker, ())}
ROLLOUT = {"env": (AsyncEnvWorker, ()), "rollout": (AsyncMultiStepRolloutWorker, ())}


def wait_for(condition: Any) -> None:
    """Wait for an event that another process makes; pytest's time limit is the only one."""
    while not condition():
        time.sleep(0.01)


class PatientActor(Actor):
    """Learns for the first time when the second rollout has come to its middle."""

    def __init__(self, cfg: Any, mark: Path) -> None:
        super().__init__(cfg)
        self._mark = mark

    def run_training(self) -> Any:
        if self.version == 0:
            wait_for(self._mark.exists)
        return super().run_training()

    def versions(self) -> torch.Tensor:
        return self._require_batch().versions


class SlowEnv(AsyncActingEnvWorker):
    """Stops in the middle of the second rollout until the next weights are there."""

    _rollouts = -1

    def __init__(self, cfg: Any, mark: Path) -> None:
        super().__init__(cfg)
        self._mark = mark

    @classmethod
    def restart_policy(cls, cfg: Any, mark: Path) -> Any:
        return super().restart_policy(cfg)

    def _begin_rollout(self, chunks: int) -> None:
        super()._begin_rollout(chunks)
        self._rollouts += 1

    def _recv_actions(self, stage: int, epoch: int, chunk: int) -> torch.Tensor:
        if (self._rollouts, chunk) == (1, CHUNKS // 2):
            self._mark.touch()
            wait_for(lambda: self._staged._version == 1)
        return super()._recv_actions(stage, epoch, chunk)


def make_runner(
    runners: Any,
    folder: Path,
    workers: dict[str, Any],
    *overrides: str,
    age: int = 1,
    recipe: str = "gymnasium_ppo_mlp",
) -> EmbodiedRunner:
    place = ALIKE if "acting" in workers else APART
    more = [*SHORT, place, f"algorithm.max_policy_age={age}", *overrides]
    return runners.runner(folder, recipe, more, workers)


def steps_of(runner: EmbodiedRunner) -> list[dict[str, float]]:
    text = (runner.folder / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if "rollout/policy_age" in line]


@pytest.mark.timeout(180)
def test_weights_are_taken_up_between_chunks_of_a_rollout_under_way(runners, tmp_path):
    """Neither learner nor env gets on without the other being in the middle of its own work."""
    mark = tmp_path / "mark"
    workers = {"acting": (SlowEnv, (mark,)), "actor": (PatientActor, (mark,))}
    runner = make_runner(runners, tmp_path, workers)
    runner.max_steps = 3
    for step in range(2):
        runner.global_step = step
        runner.update_rollout_weights()
        runner.generate_rollouts()
        (versions,) = runner.actor.versions().wait()
        metrics = runner.learn()
        if step == 0:
            assert (versions == 0).all() and metrics["rollout/policy_age_max"] == 0
    half = CHUNKS // 2
    assert (versions[:half] == 0).all() and (versions[half:] == 1).all()
    assert metrics["rollout/policy_age"] == 0.5 and metrics["rollout/policy_age_max"] == 1
    assert metrics["rollout/stale_dropped"] == 0
    # The third has been played, or is being played, with what the learner has not yet got.
    assert len(runner.rollouts) == 1 and "1 rollout(s)" in runner.in_flight()[0]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("workers", [ENVS, ROLLOUT], ids=["acting_envs", "rollout_workers"])
@pytest.mark.parametrize("age", [1, 3])
def test_nothing_is_older_than_allowed(runners, tmp_path, workers, age):
    runner = make_runner(runners, tmp_path, workers, "runner.max_epochs=6", age=age)
    summary = runner.run()
    steps = steps_of(runner)
    assert summary["status"] == "finished" and len(steps) == 6
    assert summary["env_steps"] == 6 * 16 * CHUNKS and not runner.in_flight()
    assert summary["policy_age_max"] <= age and summary["stale_dropped"] == 0
    assert steps[0]["rollout/policy_age_max"] == 0
    assert summary["rollout_seconds"] > 0 and summary["update_seconds"] > 0
    assert min(use["host"] for use in summary["peak_memory"].values()) > 10 << 20
    assert summary["evaluation"]["eval/episodes"] == 4


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("metaworld_grpo_mlp", ["env.train.max_episode_steps=20", "actor.global_batch_size=80"]),
        (
            "gymnasium_sac_mlp",
            ["algorithm.update_epoch=4", "algorithm.replay_buffer.min_buffer_size=16"],
        ),
        (
            "gymnasium_ppo_mlp",
            ["algorithm.loss_type=decoupled_actor_critic", "actor.global_batch_size=80"],
        ),
    ],
    ids=["grpo", "sac", "decoupled_ppo"],
)
def test_learners_of_all_kinds_learn_from_rollouts_that_are_ahead(runners, tmp_path, recipe, more):
    common = [
        ALIKE,
        "algorithm.max_policy_age=1",
        "env.train.max_steps_per_rollout_epoch=20",
        "env.eval.max_episode_steps=20",
        "env.eval.total_num_envs=4",
        "runner.eval_episodes=4",
        "runner.max_epochs=4",
    ]
    if recipe.startswith("metaworld"):
        common.remove("env.train.max_steps_per_rollout_epoch=20")
    runner = runners.runner(tmp_path, recipe, [*common, *more], ENVS)
    summary = runner.run()
    assert summary["status"] == "finished" and summary["policy_age_max"] <= 1
    assert len(steps_of(runner)) == 4


# -- slow envs -------------------------------------------------------------------------------------

TWO_ALIKE = "cluster.component_placement={actor:0,rollout:1-2,env:1-2}"
TWO_APART = "cluster.component_placement={actor:0,rollout:2-3,env:0-1}"
SLOW_ROLLOUTS = 3


class StuckUntilCut:
    """On rank 1, plays half of a rollout and then waits until it is asked to hand it over.

    It may be asked before, as the other rank does not wait for it, and heeds that in the middle.
    """

    _asked = 0, 0

    def _is_cut(self) -> bool:
        number, chunk = self._asked
        chunk = chunk + 1 if number == self._rollout_number else 1
        self._asked = self._rollout_number, chunk
        if self._rank == 1 and self._rollout_number <= SLOW_ROLLOUTS:
            if chunk < CHUNKS // 2:
                return False
            wait_for(super()._is_cut)
        return super()._is_cut()


class StuckEnv(StuckUntilCut, AsyncActingEnvWorker):
    pass


class StuckRollout(StuckUntilCut, AsyncMultiStepRolloutWorker):
    pass


class LookingActor(Actor):
    """Shows what it has received."""

    def received(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self._require_batch()
        return batch.valid.any(-1), batch.begins


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("place", "workers"),
    [
        (TWO_ALIKE, {"acting": (StuckEnv, ())}),
        (TWO_APART, {**ROLLOUT, "rollout": (StuckRollout, ())}),
    ],
    ids=["acting_envs", "rollout_workers"],
)
def test_who_is_behind_hands_over_what_there_is(runners, tmp_path, place, workers):
    """The learner gets on although one process never plays a rollout to its end."""
    workers = workers | {"actor": (LookingActor, ())}
    runner = make_runner(runners, tmp_path, workers, place)
    runner.max_steps = 9
    half = CHUNKS // 2
    for step in range(SLOW_ROLLOUTS):
        runner.global_step = step
        runner.update_rollout_weights()
        metrics, _ = runner.generate_rollouts()
        assert metrics["rollout/handed_over_early"] == 1
        assert runner.env_steps == (step + 1) * 8 * (CHUNKS + half)
        ((valid, begins),) = runner.actor.received().wait()
        assert valid[:, :8].all() and valid[half:, 8:].all() and not valid[:half, 8:].any()
        # Episodes go on where they were cut; an episode of a pendulum has 200 steps.
        assert begins[half, 8:].all() if step == 0 else not begins[:, 8:].any()
        assert runner.learn()["train/actor/updates"] > 0


# -- faults ----------------------------------------------------------------------------------------


class MortalAsyncEnv(Mortal, AsyncActingEnvWorker):
    pass


@pytest.mark.timeout(240)
def test_an_env_process_that_dies_in_a_rollout_ahead_comes_back(runners, tmp_path):
    """It dies in the third rollout, which is ahead of the second update at least."""
    workers = {"acting": (MortalAsyncEnv, ({0: [2 * CHUNKS + 5]},))}
    runner = make_runner(runners, tmp_path, workers, "runner.max_epochs=5")
    summary = runner.run()
    assert summary["status"] == "finished" and summary["env_restarts"] == 1
    assert summary["env_steps"] == 5 * 16 * CHUNKS, "each rollout counts once"
    assert summary["policy_age_max"] <= 1 and summary["stale_dropped"] == 0


@pytest.mark.timeout(240)
def test_what_a_rollout_took_may_be_lost_with_the_process_that_played_it(
    runners, tmp_path, monkeypatch
):
    runner = make_runner(runners, tmp_path, ENVS, "runner.max_epochs=3")
    take = runner.rollouts.take

    def deadly(count: int) -> Any:
        played = take(count)
        if runner.global_step == 1:
            os.kill(pids_of(runner)[0], signal.SIGKILL)
            wait_for(lambda: new_deaths(runner.env))
        return played

    monkeypatch.setattr(runner.rollouts, "take", deadly)
    summary = runner.run()
    assert summary["env_restarts"] == 1 and summary["env_steps"] == 3 * 16 * CHUNKS
    assert ["time/env/interact" in step for step in steps_of(runner)] == [True, False, True]


@pytest.mark.timeout(240)
def test_an_env_process_that_dies_between_steps_comes_back(runners, tmp_path):
    """While weights come, and while the policy is evaluated, with a rollout under way."""
    runner = make_runner(runners, tmp_path, ENVS, "env.train.max_restarts=2")
    runner.max_steps = 9
    for step in range(2):
        runner.global_step = step
        runner.update_rollout_weights()
        metrics, _ = runner.generate_rollouts()
        assert metrics["env/restarts"] == step
        runner.learn()
        os.kill(pids_of(runner)[0], signal.SIGKILL)
    runner.global_step = 2
    assert runner.evaluate()["eval/episodes"] == 4 and runner.retry.restarts == 2
    runner.update_rollout_weights()
    runner.generate_rollouts()
    assert runner.learn()["rollout/policy_age_max"] <= 1


# -- going on --------------------------------------------------------------------------------------


SAC = ("env.train.total_num_envs=16", "algorithm.replay_buffer.min_buffer_size=16")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("recipe", "more"),
    [("gymnasium_ppo_mlp", ()), ("gymnasium_sac_mlp", SAC)],
    ids=["ppo", "sac"],
)
def test_a_resumed_run_has_all_that_was_trained_on_and_says_what_was_in_flight(
    runners, tmp_path, capfd, recipe, more
):
    first = make_runner(
        runners,
        tmp_path / "first",
        ENVS,
        *more,
        *("runner.max_epochs=4", "runner.save_interval=2"),
        recipe=recipe,
    )
    first.run()
    assert [known.step for known in first.checkpoints.store.all()] == [2, 4]
    runners.end_of_test(sound=True)
    middle = (f"runner.resume_dir={first.folder}/checkpoints/global_step_2", "runner.max_epochs=4")
    workers = {**ENVS, "actor": (Actor, ())}
    rest = make_runner(runners, tmp_path / "rest", workers, *more, *middle, recipe=recipe)
    assert rest.global_step == 2 and rest.env_steps == 2 * 16 * CHUNKS
    assert "1 rollout(s) of 320 env steps each" in capfd.readouterr().out
    summary = rest.run()
    assert "not trained on" in summary["not_restored"][0]
    assert summary["env_steps"] == 4 * 16 * CHUNKS and summary["policy_age_max"] <= 1
    if recipe == "gymnasium_sac_mlp":
        # Those before the checkpoint are there; those in flight are not, and were played again.
        assert summary["replay_size"] == 4 * 16 * CHUNKS and summary["gradient_updates"] == 4
    runners.end_of_test(sound=True)
    # At the end nothing is in flight, and nothing is said of it.
    over = (f"runner.resume_dir={first.folder}/checkpoints/global_step_4", "runner.max_epochs=5")
    done = make_runner(runners, tmp_path / "done", ENVS, *more, *over, recipe=recipe)
    assert not done.checkpoints.not_restored


# -- the program -----------------------------------------------------------------------------------

SCRIPT = Path(__file__).parents[3] / "examples" / "embodiment" / "train_async.py"


@pytest.mark.timeout(240)
def test_the_entry_script_trains_to_a_checkpoint(ray_address, tmp_path):
    words = [
        "++env.train.total_num_envs=2",
        "++env.train.max_episode_steps=20",
        "~env.eval",
        "++actor.global_batch_size=40",
        "++algorithm.update_epoch=1",
        "++runner.max_epochs=3",
        "++runner.save_interval=3",
        "++runner.progress=off",
        "++runner.logger.logger_backends=[jsonl]",
        f"++runner.run_dir={tmp_path}/run",
    ]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**os.environ, "RAY_ADDRESS": ray_address},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["env_steps"] == 3 * 2 * 20
    assert summary["policy_age_max"] == 1, "a rollout was played while the learner learned"
    (saved,) = CheckpointStore(tmp_path / "run" / "checkpoints").all()
    assert saved.step == 3 and (saved.path / "actor").is_dir()
