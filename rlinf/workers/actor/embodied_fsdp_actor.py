"""The actor: joins both halves of a rollout, computes advantages, and updates the policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import rlinf.algorithms.advantages
import rlinf.algorithms.losses  # noqa: F401 - registers the losses
from rlinf.algorithms.advantages import normalize_advantages
from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.masks import embodied_loss_mask
from rlinf.algorithms.metrics import merge_metrics, reduce_metrics
from rlinf.algorithms.registry import (
    advantage_registry,
    normalizes,
    policy_loss,
    policy_loss_registry,
)
from rlinf.algorithms.utils import compute_embodied_advantages, reduce_level
from rlinf.data.embodied import EmbodiedBatch, merge_halves
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.weight_sync.sender import WeightSender
from rlinf.models import get_model
from rlinf.scheduler import Worker
from rlinf.utils.env_spec import EnvSpec
from rlinf.utils.return_scale import ReturnScale
from rlinf.workers.env.env_worker import TRAJECTORY
from rlinf.workers.rollout.multi_step_rollout_worker import HALF


class EmbodiedFSDPActor(Worker):
    """Trains a policy on rollouts of envs."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg
        self.version = 0
        self._device = torch.device(self.torch_device_type)
        self._batch: EmbodiedBatch | None = None

    def init_worker(self, env_spec: EnvSpec, total_steps: int = 0) -> None:
        """Builds the policy and its optimiser."""
        seed = self.cfg.actor.seed
        seed = self.cfg.runner.seed if seed is None else seed
        torch.manual_seed(seed)
        self._shuffle = torch.Generator().manual_seed(seed * 7_919 + self._rank)
        model = get_model(self.cfg.actor.model, env_spec)
        self.engine = TrainEngine(
            model, self.cfg.actor, self._device, self._world_size, total_steps
        )
        self._sender = WeightSender(self, self.cfg)
        self._scale = ReturnScale(self.cfg.algorithm.gamma)

    # -- weights --------------------------------------------------------------------------------

    @Worker.timer("sync_weights")
    def sync_model_to_rollout(self) -> int:
        """Sends the weights to all rollout workers; returns the number of bytes."""
        tensors = self.engine.full_tensors()
        if self._rank == 0:
            return self._sender.send(tensors, self.version)
        for _ in tensors:
            pass
        return 0

    # -- rollouts -------------------------------------------------------------------------------

    def recv_rollout_batch(self) -> int:
        """Receives this rank's share of a rollout; returns the number of chunk steps in it."""
        cfg = self.cfg
        env, rollout = cfg.env.group_name, cfg.rollout.group_name
        env_halves, rollout_halves = [], []
        for epoch in range(cfg.env.train.rollout_epoch):
            for stage in range(cfg.rollout.pipeline_stage_num):
                key = (epoch, stage)
                for group, tag, halves in (
                    (env, TRAJECTORY, env_halves),
                    (rollout, HALF, rollout_halves),
                ):
                    halves.append(
                        self.recv_from(group, None, route_key=key, tag=tag, merge_fn=merge_halves)
                    )
        self._batch = EmbodiedBatch.join(env_halves, rollout_halves)
        return self._batch.num_samples

    @Worker.timer("advantages")
    def compute_advantages_and_returns(self) -> dict[str, float]:
        """Fills in advantages and returns; returns metrics over all ranks."""
        batch, algorithm = self._require_batch(), self.cfg.algorithm
        dones = batch.terminations | batch.truncations
        rewards = batch.rewards
        if not torch.isfinite(rewards).all():
            raise FloatingPointError("a reward is not finite; look at the env")
        if algorithm.normalize_returns:
            rewards = self._scale.apply(rewards, dones, self.engine.all_reduce)
        mask = embodied_loss_mask(dones, auto_reset=self.cfg.env.train.auto_reset)
        mask &= batch.valid.unsqueeze(-1)
        names = advantage_registry.arguments(algorithm.adv_type)
        settings = {k: algorithm[k] for k in names if k in algorithm}
        critic = algorithm.adv_type == "gae"
        advantages, returns, unit_mask = compute_embodied_advantages(
            adv_type=algorithm.adv_type,
            rewards=rewards,
            dones=dones,
            reward_type=algorithm.reward_type,
            terminations=batch.terminations,
            values=batch.prev_values if critic else None,
            bootstrap_values=batch.bootstrap_values if critic else None,
            loss_mask=mask,
            **settings,
        )
        if algorithm.normalize_advantages and normalizes(algorithm.adv_type):
            advantages = normalize_advantages(advantages, unit_mask, self.engine.all_reduce)
        self._advantages, self._returns, self._mask = advantages, returns, unit_mask
        return self._rollout_metrics(batch, advantages, returns)

    def _rollout_metrics(
        self, batch: EmbodiedBatch, advantages: Tensor, returns: Tensor | None
    ) -> dict[str, float]:
        sums = torch.tensor(
            [
                float(batch.rewards.sum()),
                float(batch.rewards.numel()),
                float(advantages.sum()),
                float(advantages.numel()),
                float(returns.sum()) if returns is not None else 0.0,
                float(batch.prev_values[:-1].sum()),
                float(batch.prev_values[:-1].numel()),
            ],
            dtype=torch.float64,
        )
        r, nr, a, na, ret, v, nv = self.engine.all_reduce(sums.to(self._device)).tolist()
        metrics = {"rewards": r / nr, "advantages_mean": a / na, "values": v / nv}
        if returns is not None:
            metrics["returns"] = ret / na
        return metrics

    def _require_batch(self) -> EmbodiedBatch:
        if self._batch is None:
            raise RuntimeError("there is no rollout to learn from: call recv_rollout_batch first")
        return self._batch

    # -- training -------------------------------------------------------------------------------

    @Worker.timer("training")
    def run_training(self) -> dict[str, float]:
        """Updates the policy on the rollout; returns metrics over all ranks."""
        batch, algorithm = self._require_batch(), self.cfg.algorithm
        data = self._flatten(batch)
        samples = batch.num_samples
        share = samples
        if self.cfg.actor.global_batch_size is not None:
            share = self.cfg.actor.global_batch_size // self._world_size
        parts: list[dict[str, Any]] = []
        steps: list[dict[str, float]] = []
        stopped = False
        for _ in range(algorithm.update_epoch):
            order = (
                torch.randperm(samples, generator=self._shuffle)
                if algorithm.shuffle_rollout
                else torch.arange(samples)
            )
            for start in range(0, samples - share + 1, share):
                metrics, step = self._update(data, order[start : start + share])
                parts += metrics
                steps.append(step)
                if algorithm.target_kl is not None and self._kl(metrics) > algorithm.target_kl:
                    stopped = True
                    break
            if stopped:
                break
        inner = self.engine.model
        inner.update_normalizer(
            batch.forward_inputs,
            mask=batch.valid,
            all_reduce=self.engine.all_reduce if self._world_size > 1 else None,
        )
        self.version += 1
        self._batch = None
        reduced = reduce_metrics(
            merge_metrics(parts), self.engine.all_reduce, self.engine.all_reduce_max
        )
        reduced |= {f"actor/{k}": sum(s[k] for s in steps) / len(steps) for k in steps[0]}
        reduced["actor/updates"] = float(len(steps))
        reduced["actor/stopped_by_kl"] = float(stopped)
        return reduced

    def _kl(self, metrics: list[dict[str, Any]]) -> float:
        reduced = reduce_metrics(
            merge_metrics(metrics), self.engine.all_reduce, self.engine.all_reduce_max
        )
        return reduced.get("actor/approx_kl", 0.0)

    def _flatten(self, batch: EmbodiedBatch) -> dict[str, Any]:
        """Samples first: `[T, B, ...]` becomes `[T * B, ...]`."""

        def flat(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1).to(self._device)

        return {
            "inputs": {key: flat(value) for key, value in batch.forward_inputs.items()},
            "old_logprobs": flat(batch.prev_logprobs),
            "old_values": flat(batch.prev_values[:-1]),
            "advantages": flat(self._advantages),
            "returns": None if self._returns is None else flat(self._returns),
            "mask": None if self._mask is None else flat(self._mask),
        }

    def _update(
        self, data: dict[str, Any], rows: Tensor
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """One optimiser step on some samples, in micro-batches."""
        mask = data["mask"]
        counted = mask[rows] if mask is not None else torch.ones_like(data["advantages"][rows])
        reduce = self.engine.all_reduce if self._world_size > 1 else None
        norm = LossNorm.count(counted, all_reduce=reduce)
        size = self.cfg.actor.micro_batch_size or len(rows)
        metrics = []
        pieces = rows.split(size)
        for index, piece in enumerate(pieces):
            loss, of_piece = self._loss(data, piece, norm)
            self.engine.backward(loss, last=index == len(pieces) - 1)
            metrics.append(of_piece)
        return metrics, self.engine.step()

    def _loss(
        self, data: dict[str, Any], rows: Tensor, norm: LossNorm
    ) -> tuple[Tensor, dict[str, Any]]:
        algorithm, model = self.cfg.algorithm, self.cfg.actor.model
        chunks = model.num_action_chunks
        critic = "critic" in algorithm.loss_type
        entropy = algorithm.entropy_bonus > 0 or algorithm.calculate_entropy
        out = self.engine.model(
            forward_type="default",
            forward_inputs={key: value[rows] for key, value in data["inputs"].items()},
            compute_logprobs=True,
            compute_entropy=entropy,
            compute_values=critic,
        )

        def level(tensor: Tensor, kind: str) -> Tensor:
            return reduce_level(tensor.unflatten(-1, (chunks, -1)), kind)

        per_chunk = algorithm.reward_type == "chunk_level"

        def unit(tensor: Tensor | None) -> Tensor | None:
            return (
                tensor[rows].squeeze(-1)
                if per_chunk and tensor is not None
                else (None if tensor is None else tensor[rows])
            )

        kwargs: dict[str, Any] = {
            "logprobs": level(out["logprobs"], algorithm.logprob_type),
            "old_logprobs": level(data["old_logprobs"][rows], algorithm.logprob_type),
            "advantages": unit(data["advantages"]),
            "loss_mask": unit(data["mask"]),
            "norm": norm,
        }
        if entropy:
            kwargs["entropy"] = level(out["entropy"], algorithm.entropy_type)
        if critic:
            kwargs["values"] = out["values"].squeeze(-1) if per_chunk else out["values"]
            kwargs["returns"] = unit(data["returns"])
            kwargs["old_values"] = unit(data["old_values"])
            kwargs["critic_warmup"] = self.engine.steps < algorithm.critic_warmup_steps
        names = policy_loss_registry.arguments(algorithm.loss_type)
        settings = {k: algorithm[k] for k in names if k in algorithm and k not in kwargs}
        eps = algorithm.ratio_clip_eps
        settings["clip_ratio_low"] = algorithm.clip_ratio_low or eps
        settings["clip_ratio_high"] = algorithm.clip_ratio_high or eps
        return policy_loss(loss_type=algorithm.loss_type, **kwargs, **settings)
