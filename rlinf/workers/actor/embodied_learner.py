"""What the actor does with a rollout of envs, whoever brings it: assign credit, then update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.registry import advantage_registry, policy_loss_registry
from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.utils.determinism import named_seed
from rlinf.workers.actor.agreement import compute_format, embodied_agreement
from rlinf.workers.actor.embodied_credit import Credit, EmbodiedCredit
from rlinf.workers.actor.embodied_samples import (
    EmbodiedSamples,
    EmbodiedTask,
    LossSettings,
    recompute_logprobs,
)
from rlinf.workers.actor.fingerprints import embodied_tensors
from rlinf.workers.actor.learner import ACTOR, Learner, LearnerPlace
from rlinf.workers.actor.update_loop import UpdateLoop
from rlinf.workers.agreement import (
    Evidence,
    Finding,
    SeenInputs,
    compare_formats,
    compare_inputs,
    compare_tensors,
    sampled_steps,
)

_NOTHING_COUNTS = (
    "nothing of this rollout counts, since all groups are outside of "
    "algorithm.rewards_lower_bound and rewards_upper_bound, or all envs gave NaN"
)


class EmbodiedLearner(Learner):
    """Learns from rollouts of envs by a policy loss, such as PPO's.

    Args:
        cfg: the configuration.
        model: the policy, on the CPU and equal on each rank, its weights in float32.
        place: where it runs.

    Attributes:
        credit: what turns rewards into advantages.
    """

    def __init__(self, cfg: Any, model: nn.Module, place: LearnerPlace) -> None:
        super().__init__(cfg, place)
        engine = TrainEngine(
            model,
            cfg.actor,
            place.device,
            place.world_size,
            place.total_steps,
            on_nan=cfg.runner.on_nan,
            keep_reference=needs_reference(cfg.algorithm),
        )
        shuffle = named_seed(place.seed, "actor", "shuffle", place.rank)
        self.add_engine(ACTOR, engine, UpdateLoop(cfg, engine, shuffle))
        self.credit = EmbodiedCredit(cfg, engine.all_reduce, place.device, place.warn)
        self._loss = LossSettings.of(cfg)
        self._prepared: tuple[EmbodiedBatch, Credit, Tensor | None] | None = None

    def prepare(self, batch: EmbodiedBatch, env_ids: Sequence[int]) -> dict[str, float]:
        """Assigns credit to a rollout; returns metrics over all ranks.

        Args:
            batch: this rank's share.
            env_ids: numbers of its envs in the whole run, for messages.
        """
        reference = None
        if self.engine.reference is not None:
            self.engine.onload(optimizer=False)
            reference = self._recompute(batch, reference=True)
        credit = self.credit.assign(batch, env_ids, reference)
        self._prepared = batch, credit, reference
        return credit.metrics

    def update(self) -> dict[str, float]:
        """Updates the policy on the rollout that was prepared; returns metrics over all ranks."""
        if self._prepared is None:
            raise RuntimeError("there are no advantages: call compute_advantages_and_returns first")
        batch, credit, reference = self._prepared
        self.engine.onload()
        proximal = self._recompute(batch) if _needs_proximal(self.cfg.algorithm) else None
        samples = EmbodiedSamples.of(
            batch,
            credit,
            self.engine.device,
            self._loss,
            ref_logprobs=reference,
            proximal_logprobs=proximal,
        )
        if self.fingerprints is not None:
            self.fingerprints.batch(embodied_tensors(batch, credit))
        task = EmbodiedTask(self._loss, self.engine, samples, self.version + 1)
        metrics = self.updates.run(task)
        self.tell_what_was_left_out(metrics, _NOTHING_COUNTS)
        self.engine.model.update_normalizer(
            batch.forward_inputs,
            mask=credit.seen.any(-1),
            all_reduce=self.engine.all_reduce if self.place.world_size > 1 else None,
        )
        self.version += 1
        self._prepared = None
        metrics["nan_skipped"] = float(self.credit.nan_skipped + self.engine.skipped)
        return metrics

    # -- agreement with the rollout ---------------------------------------------------------------

    def agreement(self, batch: EmbodiedBatch) -> tuple[dict[str, float], torch.dtype]:
        """Compares a rollout with what the policy makes of it now; see `embodied_agreement`.

        Returns:
            The differences over all ranks, and the number format that they were computed in.
        """
        self.engine.onload(optimizer=False)
        numbers = embodied_agreement(
            self.engine,
            batch,
            self.version,
            self._forward_size(batch),
            values=self.cfg.actor.model.add_value_head,
        )
        return numbers, compute_format(self.engine)

    def find_differences(
        self, batch: EmbodiedBatch, env_ids: Sequence[int], evidence: Sequence[Evidence]
    ) -> list[Finding]:
        """Says what differs between this rank and whoever acted; all ranks call it.

        Args:
            batch: this rank's share of the rollout.
            env_ids: number, in the whole run, of each column's env; again for each epoch.
            evidence: of all rollout workers.
        """
        received = SeenInputs()
        epochs = self.cfg.env.train.rollout_epoch
        width = len(env_ids) // epochs
        for step in sampled_steps(batch.prev_logprobs.shape[0]):
            for epoch in range(epochs):
                own = slice(epoch * width, (epoch + 1) * width)
                inputs = {key: value[step, own] for key, value in batch.forward_inputs.items()}
                received.note(epoch, step, env_ids[own], inputs)
        return [
            *compare_tensors(self.engine.full_tensors(), self.version, evidence),
            *compare_inputs(received.table(), evidence),
            *compare_formats(compute_format(self.engine), evidence),
        ]

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
        size = self._forward_size(batch)
        return recompute_logprobs(self.engine, batch, size, reference=reference)

    def _forward_size(self, batch: EmbodiedBatch) -> int:
        """Samples per forward pass."""
        return self.cfg.actor.micro_batch_size or self.updates.share(batch.num_samples)


def needs_reference(algorithm: Any) -> bool:
    """Whether the policy is compared with the one it began as."""
    in_loss = "kl_beta" in policy_loss_registry.arguments(algorithm.loss_type)
    in_advantage = "reinpp_kl_beta" in advantage_registry.arguments(algorithm.adv_type)
    return (algorithm.kl_beta > 0 and (in_loss or algorithm.kl_in == "reward")) or (
        in_advantage and algorithm.reinpp_kl_beta > 0
    )


def _needs_proximal(algorithm: Any) -> bool:
    """Whether the loss tells the policy before the update from the one that acted."""
    takes = "proximal_logprobs" in policy_loss_registry.arguments(algorithm.loss_type)
    return takes and algorithm.recompute_logprobs
