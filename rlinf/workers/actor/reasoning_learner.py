"""What the actor does with responses, whoever brings them: assign credit, then update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.agreement import Tolerance
from rlinf.algorithms.metrics import Metric, merge_metrics, reduce_metrics
from rlinf.algorithms.registry import needs_reference
from rlinf.config.arithmetic import reasoning_minibatches
from rlinf.config.placed import is_placed
from rlinf.data.token_batch import Example, TokenBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.fsdp.optimizer import OptimizerSpec
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.agreement import compute_format
from rlinf.workers.actor.exchange import exchange
from rlinf.workers.actor.learner import ACTOR, Learner, LearnerPlace
from rlinf.workers.actor.reasoning_agreement import Comparison
from rlinf.workers.actor.reasoning_batches import MicroBatches, deal
from rlinf.workers.actor.reasoning_credit import ReasoningCredit
from rlinf.workers.actor.reasoning_critic import ReasoningCritic
from rlinf.workers.actor.reasoning_samples import (
    PolicyTask,
    SupervisedTask,
    TokenLoss,
    TokenSamples,
    recompute,
)
from rlinf.workers.actor.update_loop import UpdateLoop, UpdateShape
from rlinf.workers.agreement import (
    Evidence,
    Finding,
    compare_formats,
    compare_inputs,
    compare_tensors,
)
from rlinf.workers.reasoning_agreement import name_of_response

if TYPE_CHECKING:
    from rlinf.data.reasoning import SampleGroup

Examples = Sequence[Example]
"""Token ids of prompt and response of each example, and which are learnt."""


_NOTHING_COUNTS = (
    "nothing of this batch counts, since all groups are outside of algorithm.rewards_lower_bound "
    "and rewards_upper_bound, all responses were cut and algorithm.mask_truncated is true, or "
    "rewards were NaN"
)


class ReasoningLearner(Learner):
    """Learns from groups of responses by a policy loss, such as GRPO's.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.
        critic: a value function with a network of its own, as the model; None without one, or if
            a group of its own has it.

    Attributes:
        critic: the value function and its optimiser, or None.
        credit: what turns rewards into advantages.
        comparison: of log-probabilities with the engine's, before the first optimiser step.
    """

    def __init__(
        self, cfg: Any, model: nn.Module, place: LearnerPlace, critic: nn.Module | None = None
    ) -> None:
        super().__init__(cfg, place)
        algorithm, actor, device = cfg.algorithm, cfg.actor, place.device
        self._phase = "start"
        fsdp = actor.fsdp_config
        if fsdp.gradient_checkpointing:
            model.enable_gradient_checkpointing(fsdp.gradient_checkpointing_use_reentrant)
        self._compares = needs_reference(algorithm)
        self._loss = TokenLoss.of(cfg)
        spec = OptimizerSpec(actor.optim, value_steps=self._loss.critic_warmup_steps)
        engine = TrainEngine(
            model,
            actor,
            device,
            place.world_size,
            place.total_steps,
            on_nan=cfg.runner.on_nan,
            # A model with adapters is its own reference when they are off.
            casts_alone=True,
            keep_reference=self._compares
            and not model.has_adapters
            and not is_placed(cfg, "reference"),
            optimizers={ACTOR: spec},
        )
        shape = UpdateShape(
            minibatches=reasoning_minibatches(cfg),
            epochs=algorithm.update_epoch,
            shuffles=algorithm.shuffle_rollout,
            target_kl=algorithm.target_kl,
        )
        shuffle = named_seed(place.seed, "actor", "shuffle", place.rank)
        loop = UpdateLoop(cfg, engine, shuffle, shape)
        self.comparison = Comparison(engine)
        loop.watches.append(self.comparison)
        self.add_engine(ACTOR, engine, loop)
        self.credit = ReasoningCredit(cfg, engine.all_reduce, device, place.warn)
        examples = UpdateShape(global_batch=actor.supervised.batch_size, shuffles=False)
        self._supervised = UpdateLoop(cfg, engine, place.seed, examples)
        self._training = MicroBatches.of(cfg, model, device, engine.agree, actor.micro_batch_size)
        self._inference = MicroBatches.of(
            cfg,
            model,
            device,
            engine.agree,
            algorithm.logprob_forward_micro_batch_size or actor.micro_batch_size,
        )
        self.critic: ReasoningCritic | None = None
        if critic is not None:
            seed = place.seed if cfg.critic.seed is None else cfg.critic.seed
            self.critic = ReasoningCritic(cfg, critic, replace(place, seed=seed))
            self.add_engine("critic", self.critic.engine, self.critic.updates)
        self._minibatches = shape.minibatches
        self._single = shape.minibatches * shape.epochs == 1
        self._samples: TokenSamples | None = None

    # -- reinforcement --------------------------------------------------------------------------

    def prepare(
        self, groups: Sequence[SampleGroup], chosen: Sequence[int] | None = None
    ) -> dict[str, float]:
        """Assign credit to the groups of a step; return metrics over all ranks.

        Args:
            groups: those that this rank has received; ranks exchange them.
            chosen: numbers of the prompts whose groups are trained on; None is all.
        """
        balance = self.cfg.actor.enable_dp_load_balance
        own = [TokenBatch.of(groups)]
        how = partial(deal, ranks=self.place.world_size, balance=balance, chosen=chosen)
        batch = exchange(self.engine, own, self.place.rank, how)
        self._samples, metrics = self._with_credit(batch)
        return self._reduce([metrics])

    def for_critic(self) -> TokenSamples:
        """Return what a value function elsewhere learns from, of what was prepared on this rank."""
        if self._samples is None:
            raise RuntimeError("there are no returns: call compute_advantages_and_returns first")
        left = dict.fromkeys(("advantages", "old_logprobs", "ref_logprobs", "weights", "shares"))
        return replace(self._samples, **left)

    def update(
        self, tolerance: Tolerance | None = None, critic_first: bool = False
    ) -> dict[str, float]:
        """Update the policy on what was prepared; return metrics over all ranks.

        Args:
            tolerance: how far the engine's log-probabilities may be from the policy's before the
                update; None does not compare them.
            critic_first: whether a value function elsewhere needs further steps before the policy
                is trained.

        Raises:
            TooFarApart: they are further apart; nothing was updated.
        """
        if self._samples is None:
            raise RuntimeError("there are no advantages: call compute_advantages_and_returns first")
        samples, self._samples = self._samples, None
        if self.fingerprints is not None:
            self.fingerprints.batch(samples.by_sequence())
        metrics: dict[str, float] = {}
        self.comparison.begin(tolerance, self.version)
        if critic_first or (self.critic is not None and self.critic.warming_up):
            self.updates.skip(samples.batch.num_sequences)
        else:
            self.engine.onload()
            metrics |= self.updates.run(self._task(samples))
        if self.critic is not None:
            metrics |= self.critic.update(replace(samples, weights=None, shares=None))
        return self._finish(metrics)

    def stream(
        self, arriving: Iterable[SampleGroup], total: int, tolerance: Tolerance | None = None
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Update the policy on groups as they arrive.

        Args:
            arriving: groups that this rank receives, read as they are needed.
            total: groups of all ranks.
            tolerance: as for `update`.

        Returns:
            Metrics of the batch and of the update, over all ranks.

        Raises:
            ValueError: the algorithm needs the whole batch, or ranks have not as many groups.
            TooFarApart: as for `update`.
        """
        problem = self.why_not_stream()
        if problem:
            raise ValueError(f"actor.stream_groups is set, but {problem}")
        if total % self.place.world_size:
            raise ValueError(
                f"{total} groups cannot be streamed to {self.place.world_size} actor ranks alike; "
                "set actor.stream_groups to 0, or use a multiple"
            )
        self.engine.onload()
        self.comparison.begin(tolerance, self.version)
        of_batch: list[dict[str, Metric]] = []
        metrics = self.updates.stream(
            self._rounds(iter(arriving), total // self.place.world_size, of_batch)
        )
        return self._reduce(of_batch), self._finish(metrics)

    def why_not_stream(self) -> str:
        """Return why training cannot begin before all groups are there, in words.

        Empty if it can.
        """
        algorithm = self.cfg.algorithm
        if algorithm.update_epoch > 1:
            return f"algorithm.update_epoch is {algorithm.update_epoch}: each pass needs all groups"
        if self.credit.looks_at_whole_batch:
            return (
                f"advantages of {algorithm.adv_type} are normalised over the whole batch; set "
                "algorithm.normalize_advantages to false or use grpo"
            )
        own = self.cfg.critic is not None and self.cfg.critic.use_critic_model
        if own or self._loss.critic:
            return "a value function is trained on whole batches"
        recomputes = algorithm.recompute_logprobs and not is_placed(self.cfg, "inference")
        if self._minibatches > 1 and recomputes:
            return (
                f"there are {self._minibatches} minibatches and old log-probabilities are "
                "recomputed: after the first one the old weights are gone; set "
                "algorithm.recompute_logprobs to false, or let inference workers do it"
            )
        if algorithm.target_kl is not None:
            return "algorithm.target_kl looks at minibatches that are complete"
        return ""

    def _rounds(
        self, arriving: Iterator[SampleGroup], share: int, of_batch: list[dict[str, Metric]]
    ) -> Iterator[tuple[PolicyTask, bool]]:
        """Return the tasks of a few groups each, and whether they complete a minibatch."""
        at_a_time = self.cfg.actor.stream_groups or share
        for minibatch in torch.arange(share).tensor_split(self._minibatches):
            left = len(minibatch)
            while left:
                count = min(at_a_time, left)
                groups = [next(arriving) for _ in range(count)]
                left -= count
                groups.sort(key=lambda group: group.prompt.index)
                samples, metrics = self._with_credit(TokenBatch.of(groups))
                of_batch.append(metrics)
                yield self._task(samples), left == 0

    def _with_credit(self, batch: TokenBatch) -> tuple[TokenSamples, dict[str, Metric]]:
        """Compute what training needs to know of each token; all ranks call it."""
        self._begin("reinforcement")
        loss = self._loss
        if batch.logprobs.isnan().any() and (loss.engine_logprobs or not loss.recomputes):
            raise ValueError(
                "the engine gave no log-probabilities for some samples; set "
                "rollout.return_logprobs to true, or to false with "
                "algorithm.recompute_logprobs: true"
            )
        self.engine.onload(optimizer=False)
        reference = self._reference_logprobs(batch) if self._compares else None
        old = self._old_logprobs(batch) if loss.recomputes else None
        values = self._values(batch)
        credit = self.credit.assign(
            batch,
            logprobs=batch.logprobs if old is None else old,
            ref_logprobs=reference,
            values=values,
        )
        samples = TokenSamples(
            batch=batch,
            mask=credit.mask,
            advantages=credit.advantages,
            returns=credit.returns,
            old_logprobs=old,
            ref_logprobs=reference,
            old_values=values,
            weights=None if credit.scales is None else credit.scales.weights,
            shares=None if credit.scales is None else credit.scales.shares,
        )
        return samples, credit.metrics

    @property
    def _compares_in_credit(self) -> bool:
        """Whether divergence from the reference is a part of advantages."""
        algorithm = self.cfg.algorithm
        in_reward = algorithm.kl_in == "reward" and algorithm.kl_beta > 0
        return self._compares and (in_reward or algorithm.reinpp_kl_beta > 0)

    def _old_logprobs(self, batch: TokenBatch) -> Tensor | None:
        if batch.old_logprobs is not None:
            return batch.old_logprobs
        _require_given(self.cfg, "inference", "old log-probabilities")
        if self._single and not self._compares_in_credit:
            # The forward pass of the only update gives the same.
            return None
        return self._logprobs(batch)

    def _logprobs(self, batch: TokenBatch) -> Tensor:
        return recompute(self.engine, batch, self._inference, temperature=self._loss.temperature)

    def _values(self, batch: TokenBatch) -> Tensor | None:
        if batch.values is not None:
            return batch.values
        if self.critic is not None:
            return self.critic.values(batch)
        if not self._loss.critic:
            _require_given(self.cfg, "critic", "values")
            return None
        return recompute(
            self.engine,
            batch,
            self._inference,
            "values",
            compute_logprobs=False,
            compute_values=True,
        )

    def _reference_logprobs(self, batch: TokenBatch) -> Tensor:
        if batch.ref_logprobs is not None:
            return batch.ref_logprobs
        _require_given(self.cfg, "reference", "reference log-probabilities")
        kwargs: dict[str, Any] = {"temperature": self._loss.temperature}
        if self.engine.reference is None:
            kwargs["use_adapters"] = False
        else:
            kwargs["reference"] = True
        with self.engine.reference_at_hand():
            return recompute(self.engine, batch, self._inference, **kwargs)

    def _task(self, samples: TokenSamples) -> PolicyTask:
        return PolicyTask(
            self._loss, self.engine, samples, self._training, self.version + 1, self.comparison
        )

    def _finish(self, metrics: dict[str, float]) -> dict[str, float]:
        self.version += 1
        self.tell_what_was_left_out(metrics, _NOTHING_COUNTS)
        lost = torch.tensor([float(self.credit.nan_skipped)], dtype=torch.float64)
        metrics["nan_skipped"] = float(self.engine.all_reduce(lost)) + self.engine.skipped
        compared = self.comparison.numbers or {}
        return metrics | {f"agreement/{name}": number for name, number in compared.items()}

    def find_differences(
        self, tensors: Iterable[tuple[str, Tensor]], evidence: Sequence[Evidence]
    ) -> list[Finding]:
        """Say what differs between this rank and the engines, after `TooFarApart`.

        Args:
            tensors: all weights as they were sent to the engines, whole.
            evidence: of all rollout workers.
        """
        return [
            *compare_tensors(tensors, self.version, evidence),
            *compare_inputs(self.comparison.received(), evidence, name_of_response),
            *compare_formats(compute_format(self.engine), evidence),
        ]

    # -- supervision ----------------------------------------------------------------------------

    def supervise(self, examples: Examples) -> dict[str, float]:
        """Learn given responses, in steps of `actor.supervised.batch_size` examples.

        Must come before the first batch of reinforcement, which begins with a fresh optimiser and,
        where it is compared with a reference, with the policy that supervision has made as that.

        Args:
            examples: of all ranks; each takes its share.

        Returns:
            Metrics over all ranks.

        Raises:
            ValueError: the examples are no whole number of steps, or do not divide among ranks.
        """
        size = self.cfg.actor.supervised.batch_size
        if not examples or len(examples) % size or size % self.place.world_size:
            raise ValueError(
                f"{len(examples)} examples cannot be learnt in steps of "
                f"actor.supervised.batch_size {size} on {self.place.world_size} ranks: the first "
                "must be a multiple of the second, and that of the third"
            )
        self._begin("supervised")
        self.engine.onload()
        own = [examples[i] for i in range(self.place.rank, len(examples), self.place.world_size)]
        batch = TokenBatch.of_examples(own)
        task = SupervisedTask(self.engine, TokenSamples(batch, batch.loss_mask), self._training)
        metrics = self._supervised.run(task)
        self.version += 1
        return metrics

    def _begin(self, phase: str) -> None:
        """Go from one kind of training to the next, once."""
        if phase == self._phase:
            return
        if phase == "supervised":
            if self._phase != "start":
                raise RuntimeError("examples come before reinforcement: it has begun already")
            supervised = self.cfg.actor.supervised
            self.engine.begin_phase(supervised.optim, supervised.steps)
        elif self._phase == "supervised":
            self.engine.onload()
            self.engine.begin_phase(
                self.cfg.actor.optim,
                self.place.total_steps,
                value_steps=self._loss.critic_warmup_steps,
            )
        self._phase = phase

    # -- checkpoints ----------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return {"phase": self._phase, "nan_skipped": self.credit.nan_skipped}

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        self._phase = state["phase"]
        if self._phase == "supervised":
            supervised = self.cfg.actor.supervised
            self.engine.begin_phase(supervised.optim, supervised.steps, forget=False)
        if same_ranks:
            self.credit.nan_skipped = state["nan_skipped"]

    def _reduce(self, parts: list[dict[str, Metric]]) -> dict[str, float]:
        engine = self.engine
        return reduce_metrics(merge_metrics(parts), engine.all_reduce, engine.all_reduce_max)


def _require_given(cfg: Any, component: str, what: str) -> None:
    """Samples of a run with workers for something have it."""
    if is_placed(cfg, component):
        raise ValueError(
            f"samples have no {what}, which the {component} workers add: let groups pass through "
            f"them, or take {component} out of cluster.component_placement"
        )
