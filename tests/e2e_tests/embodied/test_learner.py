"""The learner in a whole run: a reference policy, filtered groups, NaN, and devices given up."""

from __future__ import annotations

import json

import pytest
import torch

from rlinf.runners.embodied_runner import EmbodiedRunner
from tests.e2e_tests.embodied.test_embodied import SHORT


def metrics_of(runner: EmbodiedRunner) -> list[dict[str, float]]:
    lines = (runner.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(180)
def test_grpo_with_a_reference_filtered_groups_and_devices_given_up_in_turn(runners, tmp_path):
    overrides = [
        "cluster.component_placement={actor:0-1,rollout:0,env:0-1}",
        "actor.enable_offload=true",
        "rollout.enable_offload=true",
        "env.train.enable_offload=true",
        "env.eval.enable_offload=true",
        "algorithm.kl_beta=0.1",
        "algorithm.filter_rewards=true",
        "algorithm.rewards_lower_bound=0.0",
        "runner.max_epochs=1",
    ]
    runner = runners.runner(tmp_path, "metaworld_grpo_mlp", [*SHORT, *overrides])
    runner.update_rollout_weights()
    runner.generate_rollouts()
    for batch in runner.actor.batch().wait():
        # A group begins in one state; groups differ.
        first = batch["states"][0].unflatten(0, (-1, 8))
        assert torch.equal(first, first[:, :1].expand_as(first))
        assert len(first[:, 0].unique(dim=0)) == len(first)
    runner.learn()
    runner.run()
    lines = [line for line in metrics_of(runner) if "time/training" in line]
    assert all(line["rollout/groups_kept"] == 1.0 for line in lines)
    assert lines[-1]["train/actor/kl_ref"] > 0
    timed = {"time/actor/offload", "time/rollout/offload", "time/env/offload"}
    assert all(timed <= line.keys() for line in lines)
    assert_turns_are_kept(runner)


def assert_turns_are_kept(runner: EmbodiedRunner) -> None:
    """Whoever uses a device has it, and those whose turn it is not have left it."""
    groups = (runner.env, runner.rollout, runner.actor)
    events = [event for group in groups for diary in group.read().wait() for event in diary]
    on: set[tuple[str, int]] = set()
    used = set()
    for _, rank, event in sorted(events):
        role, what = event.split()
        if what == "on":
            on.add((role, rank))
        elif what == "off":
            on.discard((role, rank))
        else:
            assert (role, rank) in on, event
            others = {"actor"} if role != "actor" else {"env", "rollout"}
            assert not others & {holder for holder, _ in on}, (event, on)
            used.add((role, rank))
    assert used == {("env", 0), ("env", 1), ("rollout", 0), ("actor", 0), ("actor", 1)}
    assert not on


@pytest.mark.timeout(180)
def test_an_observation_that_is_not_finite_stops_the_run(runners, tmp_path):
    runner = runners.runner(tmp_path, "metaworld_ppo_mlp", SHORT)
    runner.env.send_nan_after(6).wait()
    # Rank 1 of two has envs 8 to 15.
    with pytest.raises(FloatingPointError, match="'states' of env 9 is nan .* step 6"):
        runner.run()
    assert json.loads((runner.folder / "summary.json").read_text())["status"] == "failed"


@pytest.mark.timeout(180)
def test_an_observation_that_is_not_finite_is_left_out(runners, tmp_path):
    overrides = ["runner.on_nan=skip", "runner.val_check_interval=-1"]
    runner = runners.runner(tmp_path, "metaworld_ppo_mlp", [*SHORT, *overrides])
    runner.env.send_nan_after(6).wait()
    runner.run()
    counts = [line["train/nan_skipped"] for line in metrics_of(runner)[:2]]
    assert counts == [1, 1]
