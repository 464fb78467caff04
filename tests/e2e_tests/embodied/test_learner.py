"""The learner in a whole run: a reference policy, filtered groups, NaN, and devices given up."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
import torch

from rlinf.config import build_config, validate_cfg
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler import HybridComponentPlacement
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.multi_step_rollout_worker import MultiStepRolloutWorker
from tests.e2e_tests.embodied.test_embodied import CONFIGS, SHORT, InspectableActor


class Diary:
    """Writes down when a device is taken, used and given up."""

    def note(self, event: str) -> None:
        self.events = [*getattr(self, "events", []), (time.monotonic(), self._rank, event)]

    def read(self) -> list[tuple[float, int, str]]:
        return getattr(self, "events", [])


class WatchedActor(Diary, InspectableActor):
    def init_worker(self, *args: Any) -> None:
        super().init_worker(*args)
        engine, updates = self.engine, self.learner.updates
        onload, offload, run = engine.onload, engine.offload, updates.run
        engine.onload = lambda optimizer=True: (onload(optimizer), self.note("actor on"))
        engine.offload = lambda: (offload(), self.note("actor off"))
        updates.run = lambda task: (self.note("actor trains"), run(task))[1]


class WatchedRollout(Diary, MultiStepRolloutWorker):
    def _onload(self) -> None:
        super()._onload()
        self.note("rollout on")

    def _offload(self) -> None:
        super()._offload()
        self.note("rollout off")

    def _sampling(self, stage: int, step: int) -> dict[str, Any]:
        self.note("rollout acts")
        return super()._sampling(stage, step)


class WatchedEnv(Diary, EnvWorker):
    """Sends, if told to, a NaN as observation of env 1 of rank 1 after some steps."""

    _left = -1

    def send_nan_after(self, steps: int) -> None:
        self._left = steps

    def _make(self, cfg: Any, stages: int) -> list[Any]:
        envs = super()._make(cfg, stages)
        for env in envs:
            env.onload = lambda: self.note("env on")
            env.offload = lambda: self.note("env off")
        return envs

    def _first_obs(self, stage: int, env: Any) -> dict[str, Any]:
        self.note("env plays")
        return super()._first_obs(stage, env)

    def _send_obs(self, rollout: str, stage: Any, obs: dict[str, Any], infos: Any) -> None:
        if self._left == 0 and self._rank == 1:
            obs = {**obs, "states": obs["states"].clone()}
            obs["states"][1, 7] = math.nan
        self._left -= 1
        super()._send_obs(rollout, stage, obs, infos)


def make_runner(cluster, tmp_path, recipe: str, *overrides: str) -> EmbodiedRunner:
    more = [*SHORT, *overrides, f"runner.logger.log_path={tmp_path}", "runner.progress=off"]
    cfg = validate_cfg(build_config(recipe, overrides=more, config_path=CONFIGS))
    placement = HybridComponentPlacement(cfg, cluster)
    groups = {
        "actor": WatchedActor.create_group(cfg),
        "rollout": WatchedRollout.create_group(cfg),
        "env": WatchedEnv.create_group(cfg),
    }
    for role, group in groups.items():
        groups[role] = group.launch(
            cluster, placement.get_strategy(role), name=cfg[role].group_name
        )
    runner = EmbodiedRunner(cfg, **groups)
    runner.init_workers()
    return runner


def metrics_of(runner: EmbodiedRunner) -> list[dict[str, float]]:
    lines = (runner.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(180)
def test_grpo_with_a_reference_filtered_groups_and_devices_given_up_in_turn(cluster, tmp_path):
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
    runner = make_runner(cluster, tmp_path, "metaworld_grpo_mlp", *overrides)
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
def test_an_observation_that_is_not_finite_stops_the_run(cluster, tmp_path):
    runner = make_runner(cluster, tmp_path, "metaworld_ppo_mlp")
    runner.env.send_nan_after(6).wait()
    # Rank 1 of two has envs 8 to 15.
    with pytest.raises(FloatingPointError, match="'states' of env 9 is nan .* step 6"):
        runner.run()
    assert json.loads((runner.folder / "summary.json").read_text())["status"] == "failed"


@pytest.mark.timeout(180)
def test_an_observation_that_is_not_finite_is_left_out(cluster, tmp_path):
    overrides = ["runner.on_nan=skip", "runner.val_check_interval=-1"]
    runner = make_runner(cluster, tmp_path, "metaworld_ppo_mlp", *overrides)
    runner.env.send_nan_after(6).wait()
    runner.run()
    counts = [line["train/nan_skipped"] for line in metrics_of(runner)[:2]]
    assert counts == [1, 1]
