"""Many steps of the default job take no more memory than a few."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from rlinf.workers.actor.embodied_fsdp_actor import EmbodiedFSDPActor
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.rollout.multi_step_rollout_worker import MultiStepRolloutWorker
from tests.long_tests import ALL_TESTS

STEPS, WARM = (1000, 300) if ALL_TESTS else (500, 300)
GROWTH = 8 << 20
SMALL = [
    f"runner.max_epochs={STEPS}",
    "cluster.component_placement={actor:0,rollout:0,env:0}",
    "env.train.total_num_envs=2",
    "env.train.max_steps_per_rollout_epoch=2",
    "env.train.max_episode_steps=20",
    "~env.eval",
    "actor.global_batch_size=null",
    "algorithm.update_epoch=1",
    "runner.agreement.interval=10",
]


class Memory:
    """Resident memory of every process of a run, at some steps."""

    def __init__(self, runner: Any):
        groups = {"actor": runner.actor, "rollout": runner.rollout, "env": runner.env}
        self._processes = {"driver": psutil.Process()} | {
            name: psutil.Process(group.worker_info_list[0].pid) for name, group in groups.items()
        }
        self.at: dict[int, dict[str, int]] = {}
        self._log = runner.logger.log
        runner.logger.log = self._look

    def _look(self, metrics: dict[str, float], step: int) -> None:
        self._log(metrics, step)
        if step % 100 == 0:
            self.at[step] = {n: p.memory_info().rss for n, p in self._processes.items()}


@pytest.mark.timeout(180)
def test_resident_memory_is_flat_over_many_steps(runners, tmp_path):
    plain = {"actor": EmbodiedFSDPActor, "rollout": MultiStepRolloutWorker, "env": EnvWorker}
    workers = {role: (cls, ()) for role, cls in plain.items()}
    runner = runners.runner(tmp_path, "metaworld_ppo_mlp", SMALL, workers)
    memory = Memory(runner)
    summary = runner.run()
    assert summary["global_step"] == STEPS and summary["env_steps"] == STEPS * 2 * 2
    # An allocator may take a little more now and then; what leaks goes on.
    for name, before in memory.at[WARM].items():
        grown = memory.at[STEPS][name] - before
        course = {step: at[name] >> 10 for step, at in memory.at.items()}
        assert grown < GROWTH, f"{name} grew by {grown >> 10} KiB: {course} KiB"
