"""Token sequences as samples to train on, and the losses on some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

import rlinf.algorithms.losses  # noqa: F401 - registers the losses
from rlinf.algorithms.aggregation import Aggregator, LossNorm
from rlinf.algorithms.importance import mismatch_weights
from rlinf.algorithms.metrics import Metric, MetricMax, MetricSum
from rlinf.algorithms.registry import policy_loss, policy_loss_registry
from rlinf.algorithms.surrogates import clip_range
from rlinf.data.token_batch import TokenBatch, pad_ragged, ragged_index
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.models.causal_lm.layout import Sequences
from rlinf.utils.copies import copied_to
from rlinf.workers.actor.reasoning_agreement import Comparison
from rlinf.workers.actor.reasoning_batches import MicroBatches


@dataclass(frozen=True)
class TokenSamples:
    """n sequences of R response tokens, and what is known of each token, on the host.

    Attributes:
        batch: the sequences.
        mask: what counts in the loss, bool `[R]`.
        advantages: `[R]`; None where the task has none.
        returns: `[R]`; None likewise.
        old_logprobs: of the policy before the update, by the trainer, `[R]`; None where the
            forward pass of the only update gives the same.
        ref_logprobs: of the reference policy, `[R]`; None without one.
        old_values: of the state before each token, `[R]`; None without a critic.
        weights: what each token weighs in the loss, `[R]`; None is by `loss_agg_func` alone. See
            `rlinf.algorithms.loss_scales`.
        shares: what each token adds to the number that such a loss is divided by, `[R]`.
    """

    batch: TokenBatch
    mask: Tensor
    advantages: Tensor | None = None
    returns: Tensor | None = None
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    old_values: Tensor | None = None
    weights: Tensor | None = None
    shares: Tensor | None = None

    def select(self, rows: Tensor) -> TokenSamples:
        """Return some of the sequences; of none, one that does not count.

        A rank that has no more sequences still has to take part in the passes of the others.
        """
        if not len(rows):
            return _nothing(self)
        places = ragged_index(self.batch.responses, rows)

        def cut(flat: Tensor | None) -> Tensor | None:
            return None if flat is None else flat[places]

        return TokenSamples(
            batch=self.batch.select(rows),
            mask=self.mask[places],
            advantages=cut(self.advantages),
            returns=cut(self.returns),
            old_logprobs=cut(self.old_logprobs),
            ref_logprobs=cut(self.ref_logprobs),
            old_values=cut(self.old_values),
            weights=cut(self.weights),
            shares=cut(self.shares),
        )

    @classmethod
    def join(cls, parts: Sequence[TokenSamples]) -> TokenSamples:
        """Put samples end to end; all parts know the same things."""

        def flat(name: str) -> Tensor | None:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else torch.cat(values)

        names = [field.name for field in fields(cls) if field.name != "batch"]
        batch = TokenBatch.join([part.batch for part in parts])
        return cls(batch, **{name: flat(name) for name in names})

    def by_sequence(self) -> dict[str, Tensor | None]:
        """Return what is known, one row per sequence: prompt, response, reward, credit."""
        batch = self.batch

        def rows(flat: Tensor | None) -> Tensor | None:
            return None if flat is None else pad_ragged(flat, batch.responses)

        return {
            "tokens": pad_ragged(batch.tokens, batch.lengths),
            "logprobs": rows(batch.logprobs),
            "versions": rows(batch.versions),
            "rewards": batch.rewards,
            "old_logprobs": rows(self.old_logprobs),
            "ref_logprobs": rows(self.ref_logprobs),
            "old_values": rows(self.old_values),
            "advantages": rows(self.advantages),
            "returns": rows(self.returns),
            "mask": rows(self.mask),
        }

    def counts(self) -> Tensor:
        """Response tokens of each sequence that count, int64 `[n]`."""
        return self.batch.count(self.mask)

    def divisors(self) -> Tensor:
        """Return what the loss of each response token is divided by, `[R]`, before the mean.

        That is the number of tokens of its sequence that count, unless tokens have weights.
        """
        if self.weights is None:
            return self.counts()[self.batch.sequence_ids()]
        # Weights are at most 1; what does not count is masked.
        return 1.0 / torch.where(self.mask, self.weights, 1.0)

    def parts(self) -> Tensor:
        """Return what each sequence adds to the number of sequences in the mean, float64 `[n]`."""
        if self.shares is None:
            return (self.counts() > 0).double()
        out = torch.zeros(self.batch.num_sequences, dtype=torch.float64)
        return out.index_add(0, self.batch.sequence_ids(), self.shares.double())


@dataclass(frozen=True)
class TokenLoss:
    """What the configuration says about the loss, read once: it is computed very often.

    Attributes:
        loss_type: name of the loss.
        temperature: of the logits.
        entropy: whether the entropy is needed.
        critic: whether the policy's own value head is trained.
        critic_warmup_steps: optimiser steps that train the value head alone; 0 without one.
        recomputes: whether old log-probabilities are the trainer's, not the engine's.
        decoupled: whether the loss tells the policy that sampled from the one before the update.
        mismatch: arguments of `rlinf.algorithms.importance.mismatch_weights`; None weighs nothing.
        engine_logprobs: whether the engine gives log-probabilities.
        arguments: further arguments of the loss.
    """

    loss_type: str
    temperature: float
    entropy: bool
    critic: bool
    critic_warmup_steps: int
    recomputes: bool
    decoupled: bool
    mismatch: dict[str, Any] | None
    engine_logprobs: bool
    arguments: dict[str, Any]

    @classmethod
    def of(cls, cfg: Any) -> TokenLoss:
        """Read a configuration."""
        algorithm = cfg.algorithm
        names = policy_loss_registry.arguments(algorithm.loss_type)
        arguments = {name: algorithm[name] for name in names if name in algorithm}
        arguments["clip_ratio_low"], arguments["clip_ratio_high"] = clip_range(
            algorithm.policy_loss,
            algorithm.ratio_clip_eps,
            algorithm.clip_ratio_low,
            algorithm.clip_ratio_high,
        )
        if algorithm.loss_agg_func == "seq-mean-token-sum-norm" and not algorithm.loss_length:
            arguments["loss_length"] = longest_response(cfg)
        if algorithm.policy_loss != "ppo" and "policy_loss" not in names:
            raise ValueError(
                f"algorithm.policy_loss is {algorithm.policy_loss}, but loss_type "
                f"{algorithm.loss_type} has a surrogate of its own; use loss_type actor"
            )
        decoupled = "proximal_logprobs" in names
        critic = "values" in names and cfg.actor.model.add_value_head
        return cls(
            loss_type=algorithm.loss_type,
            temperature=algorithm.sampling_params.temperature,
            entropy=algorithm.entropy_bonus > 0 or algorithm.calculate_entropy,
            critic=critic,
            critic_warmup_steps=algorithm.critic_warmup_steps if critic else 0,
            recomputes=algorithm.recompute_logprobs,
            decoupled=decoupled,
            mismatch=_mismatch(cfg, "importance_weights" in names and not decoupled),
            engine_logprobs=cfg.rollout.return_logprobs,
            arguments=arguments,
        )


def _mismatch(cfg: Any, takes_weights: bool) -> dict[str, Any] | None:
    """Return how tokens are weighed that the engine drew otherwise than the trainer would."""
    algorithm, section = cfg.algorithm, cfg.algorithm.mismatch
    if section is not None and section.mode == "none":
        return None
    if section is not None and not takes_weights:
        raise ValueError(
            f"loss_type {algorithm.loss_type} weighs samples by itself, or takes no weights; leave "
            "algorithm.mismatch out, or use loss_type actor"
        )
    # Without both, the loss compares with the engine's policy itself, or nothing is known of it.
    both = algorithm.recompute_logprobs and cfg.rollout.return_logprobs
    if not (takes_weights and both):
        return None
    return {} if section is None else dict(section)


def longest_response(cfg: Any) -> int:
    """Most tokens that a response can have."""
    limit = cfg.algorithm.sampling_params.max_new_tokens
    return limit or cfg.runner.seq_length - cfg.data.max_prompt_length


class SequenceTask:
    """What tasks over token sequences have in common, for the update loop.

    Args:
        engine: the model.
        samples: what to train on.
        micro_batches: how many go through the model at a time.
    """

    def __init__(
        self, engine: TrainEngine, samples: TokenSamples, micro_batches: MicroBatches
    ) -> None:
        self._engine = engine
        self._samples = samples
        self._micro_batches = micro_batches
        self._lengths = samples.batch.lengths
        self._counts, self._parts = samples.counts(), samples.parts()
        self.num_samples = samples.batch.num_sequences

    def norm(self, rows: Tensor, all_reduce: Callable[[Tensor], Tensor] | None) -> LossNorm:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        both = torch.stack([self._counts[rows].sum().double(), self._parts[rows].sum()])
        if all_reduce is not None:
            both = all_reduce(both)
        entries, sequences = both.tolist()
        return LossNorm(entries, sequences)

    def split(self, rows: Tensor) -> list[Tensor]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        return self._micro_batches.split(self._lengths, rows)

    def _there(self, tensor: Tensor) -> Tensor:
        return copied_to(tensor, self._engine.device)


class PolicyTask(SequenceTask):
    """The policy loss on responses and their advantages.

    Args:
        settings: of the loss.
        engine: the policy.
        samples: what to train on.
        micro_batches: how many go through the model at a time.
        version: of the weights that this update makes.
        comparison: what looks at log-probabilities before the first optimiser step.
    """

    def __init__(
        self,
        settings: TokenLoss,
        engine: TrainEngine,
        samples: TokenSamples,
        micro_batches: MicroBatches,
        version: int,
        comparison: Comparison,
    ) -> None:
        super().__init__(engine, samples, micro_batches)
        self._settings = settings
        self._version = version
        self._comparison = comparison

    def rescale(self, assumed: LossNorm, actual: LossNorm) -> float:
        """See `rlinf.workers.actor.update_loop.StreamedTask`."""
        mode = self._settings.arguments.get("loss_agg_func", "token-mean")
        return assumed.factor_to(actual, mode)

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        settings, there = self._settings, self._there
        part = self._samples.select(rows)
        out = forward(
            self._engine,
            part.batch,
            temperature=settings.temperature,
            compute_entropy=settings.entropy,
            compute_values=settings.critic,
        )
        logprobs, mask = out["logprobs"], there(part.mask)
        sampled, versions = there(part.batch.logprobs), there(part.batch.versions)
        self._comparison.note(part.batch, logprobs, sampled, mask)
        # Before the only update the policy is the one that is differentiated.
        own = logprobs.detach() if part.old_logprobs is None else there(part.old_logprobs)
        ids = part.batch.sequence_ids()
        kwargs: dict[str, Any] = {
            "logprobs": logprobs,
            "old_logprobs": own if settings.recomputes and not settings.decoupled else sampled,
            "advantages": there(part.advantages),
            "loss_mask": mask,
            "loss_mask_sum": there(part.divisors()),
            "sequence_ids": there(ids),
            "versions": versions,
            "current_version": self._version,
            "norm": norm,
        }
        if settings.decoupled and settings.recomputes:
            kwargs["proximal_logprobs"] = own
        if part.ref_logprobs is not None:
            kwargs["ref_logprobs"] = there(part.ref_logprobs)
        if settings.entropy:
            kwargs["entropy"] = out["entropy"]
        if settings.critic:
            kwargs["values"] = out["values"]
            kwargs["returns"] = None if part.returns is None else there(part.returns)
            kwargs["old_values"] = there(part.old_values)
            kwargs["critic_warmup"] = self._engine.values_learn_alone
        metrics = self._gaps(own, sampled, versions, mask)
        if settings.mismatch is not None:
            weights, outside = mismatch_weights(
                own, sampled, mask=mask, sequence_ids=kwargs["sequence_ids"], **settings.mismatch
            )
            kwargs["importance_weights"] = weights
            metrics["actor/mismatch_weight"] = _mean(weights, mask)
            metrics["actor/mismatch_outside"] = _mean(outside, mask)
        loss, of_loss = policy_loss(loss_type=settings.loss_type, **(settings.arguments | kwargs))
        return loss, of_loss | metrics

    def _gaps(
        self, own: Tensor, sampled: Tensor, versions: Tensor, mask: Tensor
    ) -> dict[str, Metric]:
        """Return how far engine and trainer are apart, and how old samples are.

        `rollout_gap` is over tokens of the weights before this update: there both computed the
        same, and what differs is their arithmetic.
        """
        age = self._version - 1 - versions
        metrics: dict[str, Metric] = {"actor/policy_age": _mean(age, mask)}
        if self._settings.engine_logprobs and self._settings.recomputes:
            difference = own - sampled
            fresh = mask & (age == 0)
            metrics["actor/rollout_gap"] = _mean(difference.abs(), fresh)
            metrics["actor/rollout_gap_max"] = MetricMax.of(difference.abs(), fresh)
            # k3 at samples of the engine: KL(engine ‖ trainer).
            metrics["actor/rollout_kl"] = _mean(difference.expm1() - difference, mask)
        return metrics


class SupervisedTask(SequenceTask):
    """Cross entropy of given responses: −Σ log π / tokens."""

    def loss(self, rows: Tensor, norm: LossNorm) -> tuple[Tensor, dict[str, Metric]]:
        """See `rlinf.workers.actor.update_loop.TrainingTask`."""
        part = self._samples.select(rows)
        logprobs = forward(self._engine, part.batch)["logprobs"]
        mask = self._there(part.mask)
        aggregator = Aggregator(logprobs, ndim=1, loss_mask=mask, norm=norm)
        term = -aggregator.clean(logprobs, "logprobs")
        return aggregator.loss(term), {"actor/supervised_loss": aggregator.loss_metric(term)}


def forward(engine: TrainEngine, batch: TokenBatch, **kwargs: Any) -> dict[str, Tensor]:
    """Run the model of an engine on some sequences; see `CausalLM.forward`."""
    return engine.forward(sequences=_sequences(batch), **kwargs)


def _sequences(batch: TokenBatch) -> Sequences:
    return Sequences(batch.tokens, batch.prompts, batch.responses)


def recompute(
    engine: TrainEngine,
    batch: TokenBatch,
    micro_batches: MicroBatches,
    what: str = "logprobs",
    **kwargs: Any,
) -> Tensor:
    """Compute one number per response token with the weights as they are, without gradients.

    Args:
        engine: the model.
        batch: this rank's sequences.
        micro_batches: how many go through the model at a time.
        what: which result of the model.
        **kwargs: arguments of `TrainEngine.infer` and of the model.

    Returns:
        `[R]`, on the host.
    """
    result = torch.zeros(len(batch.logprobs))
    samples = TokenSamples(batch, torch.ones(len(batch.logprobs), dtype=torch.bool))
    for rows in micro_batches.split(batch.lengths, torch.arange(batch.num_sequences)):
        part = samples.select(rows).batch
        out = engine.infer(sequences=_sequences(part), **kwargs)
        if len(rows):
            result[ragged_index(batch.responses, rows)] = out[what].float().cpu()
    return result


def _mean(values: Tensor, mask: Tensor) -> Metric:
    values = torch.where(mask, values.double(), 0.0)
    return MetricSum.of(values.sum(), mask.sum())


def _nothing(like: TokenSamples) -> TokenSamples:
    """One response of one token that does not count, with the same things known of it."""
    batch = TokenBatch.of_examples([((0,), (0,))])
    batch = replace(batch, indices=torch.tensor([-1]))

    def zero(flat: Tensor | None) -> Tensor | None:
        return None if flat is None else torch.zeros(1)

    return TokenSamples(
        batch=batch,
        mask=torch.zeros(1, dtype=torch.bool),
        advantages=zero(like.advantages),
        returns=zero(like.returns),
        old_logprobs=zero(like.old_logprobs),
        ref_logprobs=zero(like.ref_logprobs),
        old_values=zero(like.old_values),
        weights=zero(like.weights),
        shares=zero(like.shares),
    )
