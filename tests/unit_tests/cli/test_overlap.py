"""The sentence on runs whose envs play while the learner learns names who waits for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.cli.timeline.lanes import load_timeline
from rlinf.cli.timeline.overlap import AHEAD
from rlinf.cli.timeline.summary import summarise
from rlinf.scheduler.trace import BLOCK, CALL, STEP, WAIT, Recorder

STEPS = 4


def write(folder: Path, *, rollout: tuple[float, ...], update: float) -> Path:
    """Write a run at age 1: rollout k + 1 begins when the learner has got rollout k.

    Args:
        folder: of the run.
        rollout: seconds that a rollout takes, by env process.
        update: seconds of an update.
    """
    workers = folder / "workers"
    envs = [Recorder(str(workers / f"EnvGroup/rank_{n}.trace")) for n in range(len(rollout))]
    actor, driver = (
        Recorder(str(workers / n)) for n in ("ActorGroup/rank_0.trace", "driver.trace")
    )
    free, played = [0.0] * len(rollout), {}

    def play(number: int, now: float) -> None:
        for env, recorder in enumerate(envs):
            begin = max(now, free[env])
            free[env] = begin + rollout[env]
            recorder.add("interact", CALL, begin, free[env])
            recorder.add("env_step", BLOCK, begin, free[env])
        played[number] = max(free)

    play(0, 0.0)
    now = 0.0
    for step in range(STEPS):
        begin = now
        play(step + 1, now)
        got = max(now, played[step])
        actor.add("recv_rollout_batch", CALL, now, got + 0.001)
        actor.add("a message from EnvGroup:0 (env trajectory)", WAIT, now, got)
        actor.add("run_training", CALL, got + 0.001, got + update)
        actor.add("training", BLOCK, got + 0.001, got + update)
        driver.add("ActorGroup.recv_rollout_batch()", WAIT, now, got)
        driver.add("ActorGroup.run_training()", WAIT, got, got + update)
        now = got + update
        driver.add(f"step {step + 1}", STEP, begin, now)
    for recorder in (*envs, actor, driver):
        recorder.close()
    return folder


def explain(folder: Path):
    return summarise(load_timeline(folder), first=1)


def test_a_slow_update_lets_envs_wait(tmp_path):
    summary = explain(write(tmp_path, rollout=(2.0, 2.0), update=8.0))
    assert summary.sentence.startswith(
        "update is the limit: ActorGroup waits for rollouts 0% of the time, EnvGroup for the "
        "learner, as far ahead as algorithm.max_policy_age allows, 75%: place actor on a GPU"
    )
    lane = summary.lanes["EnvGroup:0"]
    assert lane.waiting[AHEAD] == pytest.approx(0.75 * summary.seconds) and lane.idle == 0.0


def test_slow_envs_let_the_learner_wait(tmp_path):
    summary = explain(write(tmp_path, rollout=(8.0, 8.0), update=2.0))
    assert summary.sentence.startswith("rollout is the limit: ActorGroup waits for rollouts 75%")
    assert "its largest part is env_step of EnvGroup, 100%: give env more processes" in (
        summary.sentence
    )
    assert "slowest" not in summary.sentence


def test_one_slow_process_is_named(tmp_path):
    summary = explain(write(tmp_path, rollout=(2.0, 8.0), update=2.0))
    assert summary.sentence.startswith("rollout is the limit")
    assert "EnvGroup:1 is the slowest, others have nothing to play 75% of the time" in (
        summary.sentence
    )


def test_halves_that_take_as_long(tmp_path):
    said = explain(write(tmp_path, rollout=(5.0,), update=5.0)).sentence
    assert said.startswith("neither rollouts nor updates are the limit: ")
