"""What a policy sees that plans while actions of its last plan are still carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlinf.data.embodied_messages import Obs


def early_observation(
    before: Obs, chunk: Sequence[Obs], infos: Mapping[str, Any], early: int
) -> Obs:
    """Return what was observed so many actions before the end of a chunk.

    Where an episode ended in the chunk, there is nothing to carry out any more: that is what was
    observed last, as a rule the first observation of the next episode.

    Args:
        before: observations that the chunk began with.
        chunk: those after each of its C actions; see `VectorEnv.chunk_step`.
        infos: of its last action.
        early: from 0 to C.
    """
    seen = before if early == len(chunk) else chunk[-1 - early]
    if "_final_observation" not in infos:
        return seen
    ended: Tensor = infos["_final_observation"]
    rows, last = ended.tolist(), chunk[-1]
    return {key: _chosen(ended, rows, value, seen[key]) for key, value in last.items()}


def _chosen(ended: Tensor, rows: list[bool], last: Any, seen: Any) -> Any:
    if isinstance(last, Tensor):
        return torch.where(ended.view(-1, *[1] * (last.dim() - 1)), last, seen)
    pairs = zip(rows, last, seen, strict=True)
    return [new if row else old for row, new, old in pairs]
