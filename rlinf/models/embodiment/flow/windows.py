"""Which actions of a plan are carried out."""

from __future__ import annotations

import torch
from torch import Tensor


def carried_out(plans: Tensor, count: int, decided: Tensor | None = None) -> Tensor:
    """Return what is carried out of plans, `[n, C, ...]`.

    Args:
        plans: `[n, H, ...]`, or what belongs to their actions.
        count: C.
        decided: Actions of each that were decided before it was made, and so are not its own,
            int64 `[n]`; None is none.
    """
    if decided is None:
        return plans[:, :count]
    rows = torch.arange(len(plans), device=plans.device)
    places = decided[:, None] + torch.arange(count, device=plans.device)
    return plans[rows[:, None], places]
