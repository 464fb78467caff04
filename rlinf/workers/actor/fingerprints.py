"""What one rank of the learner did in a step, as short hashes of batch, gradients and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.data.embodied import EmbodiedBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.hybrid_engines.fsdp.fingerprint import whole_checksums
from rlinf.hybrid_engines.weight_sync.checksum import checksum, checksums_of_rows
from rlinf.utils.fingerprints import short_hashes
from rlinf.workers.actor.embodied_credit import Credit


class StepFingerprints:
    """Watches the updates of a learner; see `rlinf.utils.fingerprints` for what it makes of them.

    Gradients and weights have the same hashes whatever the number of ranks that they are spread
    over; a batch has those of this rank's share.

    Args:
        engine: what is trained.
    """

    def __init__(self, engine: TrainEngine) -> None:
        self._engine = engine
        self._rank = dist.get_rank() if engine.world_size > 1 else 0
        self._batch: dict[str, str] = {}
        self._updates: list[dict[str, str]] = []

    def batch(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Take the hashes of a rollout.

        Args:
            tensors: time first, `[T, ...]` each, in causal order within a step; None is left out.
        """
        self._batch = {
            name: short_hashes(checksums_of_rows(tensor).tolist())
            for name, tensor in tensors.items()
            if tensor is not None
        }

    def before_step(self, rows: Tensor) -> None:
        """Take the hashes of a gradient, before it is clipped and used.

        Args:
            rows: samples of this rank that it is of, in their order.
        """
        gradients = [parameter.grad for parameter in self._engine.model.parameters()]
        # An odd factor of its own for each rank: their samples must not change places unseen.
        own = checksum(rows) * (2 * self._rank + 1) % (1 << 63)
        samples = torch.tensor([own], dtype=torch.int64, device=self._engine.device)
        (number,) = self._engine.all_reduce(samples).tolist()
        self._updates.append(
            {
                "samples": short_hashes([number]),
                "gradient": short_hashes(whole_checksums(self._engine, gradients)),
            }
        )

    def after_step(self) -> None:
        """Take the hashes of the weights that an optimiser step has made."""
        self._updates[-1]["weights"] = self._weights()

    def take(self) -> dict[str, Any]:
        """Hand over what was taken since the last time, and the weights as they are now."""
        record = {"batch": self._batch, "updates": self._updates, "weights": self._weights()}
        self._batch, self._updates = {}, []
        return record

    def names(self) -> dict[str, list[str]]:
        """Return the names of the tensors whose hashes stand one after the other."""
        model = self._engine.model
        return {
            "gradient": [name for name, _ in model.named_parameters()],
            "weights": list(model.state_dict()),
        }

    def _weights(self) -> str:
        return short_hashes(
            whole_checksums(self._engine, list(self._engine.model.state_dict().values()))
        )


def embodied_tensors(batch: EmbodiedBatch, credit: Credit) -> dict[str, Tensor | None]:
    """Return a rollout in causal order: what was seen, done, got, and made of it."""
    seen = {key: value for key, value in batch.forward_inputs.items() if key != "action"}
    return {
        **seen,
        "action": batch.forward_inputs.get("action"),
        "prev_logprobs": batch.prev_logprobs,
        "prev_values": batch.prev_values,
        "versions": batch.versions,
        "finite": batch.finite,
        "rewards": batch.rewards,
        "terminations": batch.terminations,
        "truncations": batch.truncations,
        "valid": batch.valid,
        "bootstrap_values": batch.bootstrap_values,
        "advantages": credit.advantages,
        "returns": credit.returns,
        "mask": credit.mask,
    }
