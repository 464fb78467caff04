"""What all learners from rollouts of envs have in common: the comparison with whoever acted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.sharding import whole
from rlinf.models.embodiment.base_policy import acts_with
from rlinf.workers.actor.agreement import compute_format, embodied_agreement
from rlinf.workers.actor.learner import Learner
from rlinf.workers.agreement import (
    Evidence,
    Finding,
    SeenInputs,
    compare_formats,
    compare_inputs,
    compare_tensors,
    sampled_steps,
)


class RolloutLearner(Learner):
    """Learns from rollouts of envs; `prepare` gets a rollout and the numbers of its envs."""

    def forward_size(self, batch: EmbodiedBatch) -> int:
        """Return the samples of a forward pass without gradients."""
        length = self.engine.model.sequence_length
        share = self.updates.share(batch.num_samples // length) * length
        return self.cfg.actor.micro_batch_size or share

    def agreement(self, batch: EmbodiedBatch) -> tuple[dict[str, float], torch.dtype]:
        """Compare a rollout with what the policy makes of it now; see `embodied_agreement`.

        Returns:
            The differences over all ranks, and the number format that they were computed in.
        """
        self.engine.onload(optimizer=False)
        with self.acting_policy():
            numbers = embodied_agreement(
                self.engine,
                batch,
                self.version,
                self.forward_size(batch),
                values=self.cfg.actor.model.add_value_head,
                reference=self.acts_by_reference,
            )
        return numbers, compute_format(self.engine)

    def find_differences(
        self, batch: EmbodiedBatch, env_ids: Sequence[int], evidence: Sequence[Evidence]
    ) -> list[Finding]:
        """Say what differs between this rank and whoever acted; all ranks call it.

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
            *compare_tensors(self._acting_tensors(), self.version, evidence),
            *compare_inputs(received.table(), evidence),
            *compare_formats(compute_format(self.engine), evidence),
        ]

    def _acting_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Return the weights and buffers that whoever acts has, whole."""
        with self.acting_policy() as policy:
            for name, tensor in policy.state_dict().items():
                if acts_with(policy, name):
                    yield name, whole(tensor.detach())
