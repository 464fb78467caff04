"""Whole jobs of language models that the tests share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from rlinf.runners.reasoning_runner import ReasoningRunner
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from rlinf.workers.critic.critic_worker import ReasoningCriticWorker
from rlinf.workers.inference.reasoning_inference import ReasoningInference
from rlinf.workers.reward.reward_worker import RewardWorker
from rlinf.workers.rollout.generation_worker import GenerationWorker
from tests.e2e_tests.runners import BeginsAgain, RunnerFactory

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


class Actor(BeginsAgain, ReasoningActor):
    """Shows its weights; leaves the other cores to the other tests."""

    def init_worker(self, *args: Any) -> None:
        super().init_worker(*args)
        torch.set_num_threads(1)

    def weights(self) -> dict[str, torch.Tensor]:
        """What is trained, whole."""
        return {name: tensor.clone() for name, tensor in self.engine.full_tensors()}


class Rollout(BeginsAgain, GenerationWorker):
    """Leaves the other cores to the other tests."""

    async def init_worker(self) -> None:
        await super().init_worker()
        torch.set_num_threads(1)


class Reward(BeginsAgain, RewardWorker):
    """Serves one test after the other."""


class Inference(BeginsAgain, ReasoningInference):
    """Serves one job after the other."""


class Critic(BeginsAgain, ReasoningCriticWorker):
    """Serves one job after the other."""


def make_runner(
    runners: RunnerFactory, folder: Path, *overrides: str, recipe: str = "arithmetic_grpo"
) -> ReasoningRunner:
    """A job whose workers are ready."""
    return runners.runner(folder, recipe, list(overrides))


def metrics_of(runner: ReasoningRunner) -> list[dict[str, Any]]:
    """The lines of its metrics."""
    lines = (runner.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
