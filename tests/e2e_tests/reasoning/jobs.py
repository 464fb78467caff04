"""Whole jobs of language models that the tests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from rlinf.config import build_config, validate_cfg
from rlinf.runners.reasoning_helpers import launch_helpers
from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.scheduler import Cluster, HybridComponentPlacement
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from rlinf.workers.reward.reward_worker import RewardWorker
from rlinf.workers.rollout.generation_worker import GenerationWorker

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "reasoning" / "config"
SHORT = [
    "actor.supervised.steps=10",
    "actor.supervised.batch_size=16",
    "data.rollout_batch_size=8",
    "data.val_size=20",
    "algorithm.group_size=4",
    "runner.save_interval=2",
    "runner.val_check_interval=-1",
]


class InspectableActor(ReasoningActor):
    """Shows its weights."""

    def weights(self) -> dict[str, torch.Tensor]:
        """What is trained, whole."""
        return {name: tensor.clone() for name, tensor in self.engine.full_tensors()}


def make_runner(
    cluster: Cluster,
    folder: Path,
    *overrides: str,
    recipe: str = "arithmetic_grpo",
    rollout: type = GenerationWorker,
) -> ReasoningRunner:
    """A job whose workers are ready."""
    paths = [f"runner.logger.log_path={folder}", "runner.progress=off"]
    cfg = build_config(recipe, overrides=[*paths, *overrides], config_path=CONFIGS)
    cfg = validate_cfg(cfg)
    placement = HybridComponentPlacement(cfg, cluster)
    groups = {
        role: cls.create_group(cfg).launch(
            cluster, placement.get_strategy(role), name=cfg[role].group_name
        )
        for role, cls in (
            ("rollout", rollout),
            ("reward", RewardWorker),
            ("actor", InspectableActor),
        )
    }
    runner = ReasoningRunner(cfg, **groups, **launch_helpers(cfg, cluster, placement))
    runner.init_workers()
    return runner


def metrics_of(runner: ReasoningRunner) -> list[dict[str, Any]]:
    """The lines of its metrics."""
    lines = (runner.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def close(runner: ReasoningRunner) -> None:
    """Ends its workers."""
    for group in (runner.actor, runner.rollout, runner.reward, *runner.helpers):
        group._close()
