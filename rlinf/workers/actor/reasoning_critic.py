"""A value function of token sequences with a network of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.aggregation import Aggregator, LossNorm
from rlinf.algorithms.critic import compute_critic_loss
from rlinf.algorithms.metrics import Metric
from rlinf.config.arithmetic import reasoning_minibatches
from rlinf.data.token_batch import TokenBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.models import get_model
from rlinf.models.causal_lm.model import CausalLM
from rlinf.models.settings import changed_section
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.reasoning_batches import MicroBatches
from rlinf.workers.actor.reasoning_samples import (
    SequenceTask,
    TokenSamples,
    forward,
    longest_response,
    recompute,
)
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape


def critic_seed(cfg: Any) -> int:
    """Return the seed of the weights and the shuffle of a separate value network."""
    own = cfg.critic.seed if cfg.critic.seed is not None else cfg.actor.seed
    return cfg.runner.seed if own is None else own


def build_critic(cfg: Any) -> CausalLM:
    """Return the network of a value function, without weights; the same wherever it is filled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(critic_seed(cfg), "critic", "weights", 0))
        section = changed_section(cfg.critic.model, {"add_value_head": True})
        return get_model(section, dtype=torch.float32, deferred=True)


class ValueTask(SequenceTask):
    """The loss of a value function; see `rlinf.algorithms.critic.compute_critic_loss`.

    Args:
        engine: the value function.
        samples: what to train on, with returns.
        micro_batches: how many go through the model at a time.
        algorithm: the `algorithm` section.
        loss_length: see `rlinf.algorithms.aggregation.Aggregator`.
    """

    def __init__(
        self,
        engine: TrainEngine,
        samples: TokenSamples,
        micro_batches: MicroBatches,
        algorithm: Any,
        loss_length: float,
    ) -> None:
        super().__init__(engine, samples, micro_batches)
        self._clip, self._delta = algorithm.value_clip, algorithm.huber_delta
        self._mode, self._loss_length = algorithm.loss_agg_func, loss_length

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        part, there = self._samples.select(rows), self._there
        out = forward(self._engine, part.batch, compute_logprobs=False, compute_values=True)
        aggregator = Aggregator(
            out["values"],
            ndim=1,
            loss_mask=there(part.mask),
            loss_mask_sum=there(part.counts()[part.batch.sequence_ids()]),
            loss_agg_func=self._mode,
            norm=norm,
            loss_length=self._loss_length,
        )
        return compute_critic_loss(
            aggregator=aggregator,
            values=out["values"],
            returns=there(part.returns),
            old_values=there(part.old_values),
            value_clip=self._clip,
            huber_delta=self._delta,
        )


class ReasoningCritic:
    """Trains a value function, on the ranks of the policy or on others.

    Args:
        cfg: the configuration; `critic` and `algorithm` are read.
        model: the network, with a value head, on the CPU and equal on each rank.
        place: where it runs.

    Attributes:
        engine: the value function and its optimiser.
        updates: what makes its optimiser steps.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        self._algorithm = cfg.algorithm
        self._loss_length = cfg.algorithm.loss_length or longest_response(cfg)
        fsdp = cfg.critic.fsdp_config
        if fsdp.gradient_checkpointing:
            model.enable_gradient_checkpointing(fsdp.gradient_checkpointing_use_reentrant)
        self.engine = TrainEngine(
            model,
            cfg.critic,
            place.device,
            place.world_size,
            place.total_steps,
            on_nan=cfg.runner.on_nan,
            casts_alone=True,
        )
        self._micro_batches = MicroBatches.of(
            cfg, model, place.device, self.engine.agree, cfg.critic.micro_batch_size
        )
        shape = UpdateShape(
            minibatches=reasoning_minibatches(cfg),
            epochs=cfg.algorithm.update_epoch,
            shuffles=cfg.algorithm.shuffle_rollout,
        )
        shuffle = named_seed(place.seed, "critic", "shuffle", place.rank)
        self.updates = UpdateLoop(cfg, self.engine, shuffle, shape)

    @property
    def warming_up(self) -> bool:
        """Whether the policy has to wait for the value function."""
        return self.engine.steps < self._algorithm.critic_warmup_steps

    def values(self, batch: TokenBatch) -> Tensor:
        """Return the values of the state before each response token, `[R]`; all ranks call it."""
        self.engine.onload(optimizer=False)
        return recompute(
            self.engine,
            batch,
            self._micro_batches,
            "values",
            compute_logprobs=False,
            compute_values=True,
        )

    def update(self, samples: TokenSamples) -> dict[str, float]:
        """Make the optimiser steps of one batch; return metrics over all ranks."""
        self.engine.onload()
        task = ValueTask(
            self.engine, samples, self._micro_batches, self._algorithm, self._loss_length
        )
        metrics = self.updates.run(task)
        # The loop counts for the actor; here it is the critic that is trained.
        return {name.replace("actor/", "critic/", 1): value for name, value in metrics.items()}
