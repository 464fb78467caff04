"""How the samples of a rollout form sequences, which a policy that remembers learns from whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine


@dataclass(frozen=True)
class SampleSequences:
    """Sequences of successive samples of one env; of a single one if the policy has no memory.

    Sample `t * envs + e` is chunk step `t` of env `e`; sequence `s * envs + e` is the `s`-th
    sequence of env `e`.

    Attributes:
        length: chunk steps of a sequence.
        steps: of the rollout.
        envs: of the rollout, those of all epochs.
    """

    length: int
    steps: int
    envs: int

    @classmethod
    def of(cls, batch: EmbodiedBatch, engine: TrainEngine) -> SampleSequences:
        """Cut a rollout into the sequences that a policy learns from.

        Raises:
            ValueError: the rollout is not a whole number of them.
        """
        length = engine.model.sequence_length
        steps, envs = batch.prev_logprobs.shape[:2]
        if steps % length:
            raise ValueError(
                f"a rollout of {steps} chunk steps is not a whole number of sequences of "
                f"{length}: set actor.model.sequence_length to a divisor of {steps}, or change "
                "env.train.max_steps_per_rollout_epoch"
            )
        return cls(length, steps, envs)

    @property
    def count(self) -> int:
        """Number of sequences."""
        return self.steps // self.length * self.envs

    def samples(self, sequences: Tensor) -> Tensor:
        """Return the samples of sequences, int64 `[length * n]`, time first.

        Args:
            sequences: int64 `[n]`.
        """
        if self.length == 1:
            return sequences
        first = sequences // self.envs * (self.length * self.envs) + sequences % self.envs
        return (first + torch.arange(self.length)[:, None] * self.envs).flatten()

    def split(self, sequences: Tensor, samples: int | None) -> tuple[Tensor, ...]:
        """Return parts of about so many samples, one sequence at least; None is all at once."""
        return sequences.split(max(1, (samples or len(sequences) * self.length) // self.length))

    def holding(self, steps: Iterable[int]) -> Tensor:
        """Return the sequences that chunk steps of a rollout belong to."""
        numbers = torch.tensor(sorted({step // self.length for step in steps}))
        return (numbers[:, None] * self.envs + torch.arange(self.envs)).flatten()

    def arguments(self, inputs: Mapping[str, Tensor]) -> dict[str, object]:
        """Return the arguments of a forward pass on whole sequences.

        Args:
            inputs: of their samples, as `samples` orders them.
        """
        steps = {"steps": self.length} if self.length > 1 else {}
        return {"forward_type": "default", "forward_inputs": inputs, **steps}

    def inputs(
        self, batch: EmbodiedBatch, samples: Tensor, device: torch.device
    ) -> dict[str, Tensor]:
        """Return what some samples of a rollout are computed from, `[n, ...]` each."""
        step, env = samples // self.envs, samples % self.envs
        return {key: value[step, env].to(device) for key, value in batch.forward_inputs.items()}
