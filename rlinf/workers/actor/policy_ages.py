"""How old the weights are that acted in a rollout, when the learner learns from it."""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf.hybrid_engines.fsdp.engine import TrainEngine


class PolicyAges:
    """The age of each chunk of a rollout: updates made since its weights.

    Args:
        versions: of the weights that acted, int64 `[T, B]`.
        version: of the learner's weights.
        oldest: greatest age to learn from; 0 is a run whose rollouts and updates take turns, where
            `runner.weight_sync_interval` alone says how old weights get.

    Attributes:
        ages: int64 `[T, B]`.
        fresh: chunks that are not too old, bool `[T, B]`; None is all.
    """

    def __init__(self, versions: Tensor, version: int, oldest: int) -> None:
        self.ages = version - versions
        self.fresh = self.ages <= oldest if oldest else None

    def metrics(self, valid: Tensor, engine: TrainEngine) -> dict[str, float]:
        """Return mean and greatest age, and how many env steps were too old, over all ranks.

        Args:
            valid: bool `[T, B, C]`, actions that were carried out.
            engine: whose ranks these are; all call it.
        """
        steps = valid.sum(-1)
        dropped = 0 if self.fresh is None else steps[~self.fresh].sum()
        counted = self.ages if self.fresh is None else self.ages[self.fresh]
        sums = [float((self.ages * steps).sum()), float(steps.sum()), float(dropped)]
        oldest = float(counted.max()) if counted.numel() else 0.0
        device = engine.device
        total, count, dropped = engine.all_reduce(
            torch.tensor(sums, dtype=torch.float64, device=device)
        ).tolist()
        oldest = engine.all_reduce_max(torch.tensor([oldest], dtype=torch.float64, device=device))
        return {
            "policy_age": total / max(count, 1.0),
            "policy_age_max": float(oldest),
            "stale_dropped": dropped,
        }
