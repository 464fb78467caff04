"""What the actor does with a rollout of envs, whoever brings it: assign credit, then update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rlinf.algorithms.registry import needs_reference, policy_loss_registry
from rlinf.config.acting import policy_age
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.fsdp.optimizer import OptimizerSpec
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.embodied_credit import Credit, EmbodiedCredit
from rlinf.workers.actor.embodied_samples import (
    EmbodiedSamples,
    EmbodiedTask,
    LossSettings,
    recompute_logprobs,
)
from rlinf.workers.actor.fingerprints import embodied_tensors
from rlinf.workers.actor.learner import ACTOR, LearnerPlace
from rlinf.workers.actor.policy_ages import PolicyAges
from rlinf.workers.actor.rollout_learner import RolloutLearner
from rlinf.workers.actor.sample_sequences import SampleSequences
from rlinf.workers.actor.update_loop import TrainingTask, UpdateLoop

_NOTHING_COUNTS = (
    "nothing of this rollout counts, since all groups are outside of "
    "algorithm.rewards_lower_bound and rewards_upper_bound, or all envs gave NaN"
)


class EmbodiedLearner(RolloutLearner):
    """Learns from rollouts of envs by a policy loss, such as PPO's.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32; or built
            without weights.
        place: where it runs.

    Attributes:
        credit: what turns rewards into advantages.
    """

    defers_weights = True

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, place)
        self._compares = needs_reference(cfg.algorithm)
        self._loss = self._read_loss()
        engine = self._make_engine(model)
        shuffle = named_seed(place.seed, "actor", "shuffle", place.rank)
        if model.memory_width and policy_age(cfg):
            raise ValueError(
                "algorithm.max_policy_age must be 0: the policy remembers, and what it would "
                "remember cannot be computed again if its weights change during a rollout"
            )
        length = model.sequence_length
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, shuffle, unit=length))
        self.credit = EmbodiedCredit(cfg, engine.all_reduce, place.device, place.warn)
        self._prepared: tuple[EmbodiedBatch, Credit, Tensor | None] | None = None

    def prepare(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> dict[str, float]:
        """Assign credit to a rollout; return metrics over all ranks.

        Args:
            batch: this rank's share.
            env_ids: numbers of its envs in the whole run, for messages.
        """
        reference = None
        if self._compares:
            self.engine.onload(optimizer=False)
            with self.engine.reference_at_hand():
                reference = self._recompute(batch, reference=True)
        ages = PolicyAges(batch.versions, self.version, policy_age(self.cfg))
        credit = self.credit.assign(batch, env_ids, reference, ages.fresh)
        self._prepared = batch, credit, reference
        return credit.metrics | ages.metrics(batch.valid, self.engine)

    def update(self) -> dict[str, float]:
        """Update the policy on the rollout that was prepared; return metrics over all ranks."""
        if self._prepared is None:
            raise RuntimeError("there are no advantages: call compute_advantages_and_returns first")
        batch, credit, reference = self._prepared
        self.engine.onload()
        task = self._task(batch, credit, reference)
        if self.fingerprints is not None:
            self.fingerprints.batch(embodied_tensors(batch, credit))
        metrics = self.updates.run(task)
        self.tell_what_was_left_out(metrics, _NOTHING_COUNTS)
        policy = self.engine.model
        # With other statistics it would be another policy.
        if not (self.engine.only_values_learned and policy.has_statistics):
            policy.update_normalizer(
                batch.forward_inputs,
                mask=credit.seen.any(-1),
                all_reduce=self.engine.all_reduce if self.place.world_size > 1 else None,
            )
        self.version += 1
        self._prepared = None
        metrics["nan_skipped"] = float(self.credit.nan_skipped + self.engine.skipped)
        return metrics

    def _make_engine(self, model: nn.Module) -> TrainEngine:
        """Return what trains the policy, with the one to compare it with if there is one."""
        spec = OptimizerSpec(self.cfg.actor.optim, value_steps=self._loss.critic_warmup_steps)
        return self.policy_engine(
            model,
            keep_reference=self._compares,
            shares_frozen=True,
            optimizers={ACTOR: spec},
        )

    def _read_loss(self) -> LossSettings | None:
        """Return what the configuration says about the policy loss; None if there is none."""
        return LossSettings.of(self.cfg)

    def _task(self, batch: EmbodiedBatch, credit: Credit, reference: Tensor | None) -> TrainingTask:
        """Return the loss on a rollout.

        Args:
            batch: this rank's share.
            credit: its advantages.
            reference: log-probabilities of the reference policy, `[T, B, C*A]`; None without one.
        """
        proximal = self._recompute(batch) if _needs_proximal(self.cfg.algorithm) else None
        samples = EmbodiedSamples.of(
            batch,
            credit,
            self.engine.device,
            self._loss,
            ref_logprobs=reference,
            proximal_logprobs=proximal,
        )
        sequences = SampleSequences.of(batch, self.engine)
        return EmbodiedTask(self._loss, self.engine, samples, self.version + 1, sequences)

    # -- checkpoints ------------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """See `Learner.own_state`."""
        return {
            "return_scale": self.credit.scale.state_dict(),
            "nan_skipped": self.credit.nan_skipped,
        }

    def load_own_state(self, state: dict[str, Any], same_ranks: bool) -> None:
        """See `Learner.load_own_state`."""
        self.credit.nan_skipped = state["nan_skipped"]
        other_envs = {} if same_ranks else {"returns": None}
        self.credit.scale.load_state_dict(state["return_scale"] | other_envs)

    # -- plumbing -------------------------------------------------------------------------------

    def _recompute(self, batch: EmbodiedBatch, reference: bool = False) -> Tensor:
        size = self.forward_size(batch)
        return recompute_logprobs(self.engine, batch, size, reference=reference)


def _needs_proximal(algorithm: Any) -> bool:
    """Return whether the loss tells the policy before the update from the one that acted."""
    takes = "proximal_logprobs" in policy_loss_registry.arguments(algorithm.loss_type)
    return takes and algorithm.recompute_logprobs
