"""A rollout of envs as samples to train on: one per env and chunk of actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import rlinf.algorithms.losses  # noqa: F401 - registers the losses
from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.metrics import Metric
from rlinf.algorithms.registry import policy_loss, policy_loss_registry
from rlinf.algorithms.utils import reduce_level
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.workers.actor.embodied_credit import Credit
from rlinf.workers.actor.sample_sequences import SampleSequences


@dataclass(frozen=True)
class EmbodiedSamples:
    """Tensors of n = T * B samples, on the device of the learner.

    Attributes:
        inputs: what log-probabilities are recomputed from, `[n, ...]` each.
        old_logprobs: of the policy that acted, `[n, C*A]`.
        old_values: of that policy, `[n, U]`.
        versions: of its weights, `[n]`.
        advantages: `[n, U]`.
        returns: `[n, U]`; None if the advantage has none.
        actions: that count, bool `[n, C]`.
        mask: what the loss counts: actions, bool `[n, C]`, or chunks, bool `[n]`.
        lengths: steps that count of each one's episode, as the mask; None to weigh steps alike.
        whole: whether all actions count, so that the loss needs no mask.
        ref_logprobs: of the reference policy, `[n, C*A]`; None without one.
        proximal_logprobs: of the policy before this update, `[n, C*A]`; None where the loss does
            not tell it from the one that acted.
    """

    inputs: dict[str, Tensor]
    old_logprobs: Tensor
    old_values: Tensor
    versions: Tensor
    advantages: Tensor
    returns: Tensor | None
    actions: Tensor
    mask: Tensor
    lengths: Tensor | None
    whole: bool
    ref_logprobs: Tensor | None = None
    proximal_logprobs: Tensor | None = None

    @classmethod
    def of(
        cls,
        batch: EmbodiedBatch,
        credit: Credit,
        device: torch.device,
        settings: LossSettings,
        *,
        ref_logprobs: Tensor | None = None,
        proximal_logprobs: Tensor | None = None,
    ) -> EmbodiedSamples:
        """Put samples first: `[T, B, ...]` becomes `[T * B, ...]`.

        Args:
            batch: the rollout.
            credit: its advantages.
            device: of the learner.
            settings: of the loss.
            ref_logprobs: `[T, B, C*A]`.
            proximal_logprobs: `[T, B, C*A]`.
        """

        def flat(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.flatten(0, 1).to(device)

        actions, by_chunk = flat(credit.mask), settings.by_chunk
        lengths = flat(credit.lengths(by_chunk)) if settings.by_episode else None
        return cls(
            inputs={key: flat(value) for key, value in batch.forward_inputs.items()},
            old_logprobs=flat(batch.prev_logprobs),
            old_values=flat(batch.prev_values[:-1]),
            versions=flat(batch.versions),
            advantages=flat(credit.advantages),
            returns=flat(credit.returns),
            actions=actions,
            mask=actions.any(-1) if by_chunk else actions,
            lengths=lengths if lengths is None or not by_chunk else lengths.squeeze(-1),
            whole=bool(credit.mask.all()),
            ref_logprobs=flat(ref_logprobs),
            proximal_logprobs=flat(proximal_logprobs),
        )


@dataclass(frozen=True)
class LossSettings:
    """What the configuration says about the loss, read once: the loss is computed very often.

    Attributes:
        loss_type: name of the loss.
        logprob_type: level of log-probabilities.
        entropy_type: level of the entropy.
        entropy: whether the entropy is needed.
        per_chunk: whether rewards, and so values, are per chunk.
        by_chunk: whether all parts of the loss are per chunk, so that it counts chunks and not
            actions.
        by_episode: whether the loss weighs episodes and not steps alike.
        chunks: actions per chunk.
        critic: whether the loss takes values, and the policy has them.
        critic_warmup_steps: optimiser steps that train the critic alone; 0 without one.
        micro_batch: samples of a micro-batch; None is all.
        arguments: further arguments of the loss.
    """

    loss_type: str
    logprob_type: str
    entropy_type: str
    entropy: bool
    per_chunk: bool
    by_chunk: bool
    by_episode: bool
    chunks: int
    critic: bool
    critic_warmup_steps: int
    micro_batch: int | None
    arguments: dict[str, Any]

    @classmethod
    def of(cls, cfg: Any) -> LossSettings:
        """Read a configuration."""
        algorithm, model = cfg.algorithm, cfg.actor.model
        names = policy_loss_registry.arguments(algorithm.loss_type)
        arguments = {name: algorithm[name] for name in names if name in algorithm}
        eps = algorithm.ratio_clip_eps
        arguments["clip_ratio_low"] = algorithm.clip_ratio_low or eps
        arguments["clip_ratio_high"] = algorithm.clip_ratio_high or eps
        entropy = algorithm.entropy_bonus > 0 or algorithm.calculate_entropy
        levels = [algorithm.reward_type, algorithm.logprob_type]
        levels += [algorithm.entropy_type] if entropy else []
        critic = "values" in names and model.add_value_head
        return cls(
            loss_type=algorithm.loss_type,
            logprob_type=algorithm.logprob_type,
            entropy_type=algorithm.entropy_type,
            entropy=entropy,
            per_chunk=algorithm.reward_type == "chunk_level",
            by_chunk=all(level == "chunk_level" for level in levels),
            by_episode=algorithm.loss_agg_func != "token-mean",
            chunks=model.num_action_chunks,
            critic=critic,
            critic_warmup_steps=algorithm.critic_warmup_steps if critic else 0,
            micro_batch=cfg.actor.micro_batch_size,
            arguments=arguments,
        )


class EmbodiedTask:
    """The loss on samples of a rollout, for the update loop, which draws whole sequences of them.

    Args:
        settings: of the loss.
        engine: the policy.
        samples: what to train on.
        version: of the weights that this update makes.
        sequences: which of them belong together.
    """

    def __init__(
        self,
        settings: LossSettings,
        engine: TrainEngine,
        samples: EmbodiedSamples,
        version: int,
        sequences: SampleSequences,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._samples = samples
        self._version = version
        self._sequences = sequences
        self.num_samples = sequences.count

    def norm(self, rows: Tensor, all_reduce: Callable[[Tensor], Tensor] | None) -> LossNorm:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        samples, rows = self._samples, self._sequences.samples(rows)
        lengths = None if samples.lengths is None else samples.lengths[rows]
        return LossNorm.count(samples.mask[rows], loss_mask_sum=lengths, all_reduce=all_reduce)

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return self._sequences.split(rows, self._settings.micro_batch)

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        settings, rows = self._settings, self._sequences.samples(rows)
        inputs = {key: value[rows] for key, value in self._samples.inputs.items()}
        out = self._engine.forward(
            **self._sequences.arguments(inputs),
            compute_logprobs=True,
            compute_entropy=settings.entropy,
            compute_values=settings.critic,
        )
        actions = None if self._samples.whole else self._samples.actions[rows]
        kwargs = self._of_samples(rows, actions) | {"norm": norm}
        kwargs["logprobs"] = self._level(out["logprobs"], settings.logprob_type, actions)
        if settings.entropy:
            kwargs["entropy"] = self._level(out["entropy"], settings.entropy_type, actions)
        if settings.critic:
            kwargs["values"] = self._unit(out["values"])
            kwargs["critic_warmup"] = self._engine.values_learn_alone
        return policy_loss(loss_type=settings.loss_type, **(settings.arguments | kwargs))

    def _of_samples(self, rows: Tensor, actions: Tensor | None) -> dict[str, Any]:
        """Return those arguments of a loss that do not depend on the weights."""
        samples, kind = self._samples, self._settings.logprob_type
        advantages = self._unit(samples.advantages[rows])
        # Without a mask, a loss counts as many entries as there are advantages.
        unmasked = samples.whole and advantages.shape[1:] == samples.mask.shape[1:]
        kwargs: dict[str, Any] = {
            "old_logprobs": self._level(samples.old_logprobs[rows], kind, actions),
            "advantages": advantages,
            "loss_mask": None if unmasked else samples.mask[rows],
            "versions": samples.versions[rows],
            "current_version": self._version,
        }
        if samples.lengths is not None:
            kwargs["loss_mask_sum"] = samples.lengths[rows]
        if self._settings.critic:
            returns = samples.returns
            kwargs["returns"] = None if returns is None else self._unit(returns[rows])
            kwargs["old_values"] = self._unit(samples.old_values[rows])
        for name in ("ref_logprobs", "proximal_logprobs"):
            tensor = getattr(samples, name)
            if tensor is not None:
                kwargs[name] = self._level(tensor[rows], kind, actions)
        return kwargs

    def _level(self, tensor: Tensor, kind: str, actions: Tensor | None) -> Tensor:
        return reduce_level(tensor.unflatten(-1, (self._settings.chunks, -1)), kind, actions)

    def _unit(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(-1) if self._settings.per_chunk else tensor


def recompute_logprobs(
    engine: TrainEngine, batch: EmbodiedBatch, size: int, *, reference: bool = False
) -> Tensor:
    """Log-probabilities that a policy gives to the actions of a rollout.

    Args:
        engine: the policy.
        batch: the rollout.
        size: samples per forward pass.
        reference: ask the policy of the beginning instead of the present one.

    Returns:
        `[T, B, C*A]`, on the host.
    """
    sequences = SampleSequences.of(batch, engine)
    logprobs = torch.empty_like(batch.prev_logprobs).flatten(0, 1)
    for part in sequences.split(torch.arange(sequences.count), size):
        rows = sequences.samples(part)
        inputs = sequences.inputs(batch, rows, engine.device)
        out = engine.infer(reference=reference, **sequences.arguments(inputs))
        logprobs[rows] = out["logprobs"].cpu()
    return logprobs.unflatten(0, batch.prev_logprobs.shape[:2])
