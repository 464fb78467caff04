"""Hands sequences to the ranks that they are dealt to: each goes to one rank and to no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from rlinf.algorithms.groups import Groups
from rlinf.data.token_batch import TokenBatch
from rlinf.hybrid_engines.fsdp.engine import TrainEngine
from rlinf.workers.actor.reasoning_samples import TokenSamples

Sequenced = TypeVar("Sequenced", TokenBatch, TokenSamples)
"""Something with rows of sequences."""

Deal = Callable[[torch.Tensor, torch.Tensor], list[list[int]]]
"""Gives the prompts of each rank, of the prompts and the lengths of all sequences."""


def exchange(engine: TrainEngine, parts: Sequence[Sequenced], rank: int, deal: Deal) -> Sequenced:
    """Deal the groups of all ranks anew; return those of this rank, in the order of the deal.

    All ranks call it. They tell each other which prompts their sequences are of, and how long they
    are; the sequences themselves go only where they are needed.

    Args:
        engine: whose ranks these are.
        parts: what this rank has; none is possible, but not on all ranks.
        rank: this one.
        deal: says which groups each rank gets; each rank computes the same.
    """
    own = type(parts[0]).join(parts) if parts else None
    batch = own.batch if isinstance(own, TokenSamples) else own
    none = torch.zeros(0, dtype=torch.int64)
    facts = (none, none) if batch is None else (batch.indices, batch.lengths)
    everywhere = engine.gather_objects(facts)
    dealt = deal(*(torch.cat(tensors) for tensors in zip(*everywhere, strict=True)))
    if engine.world_size == 1:
        return _in_order(own, dealt[0])
    leaving: list[Sequenced | None] = [None] * len(dealt)
    for receiver, prompts in enumerate(dealt if own is not None else ()):
        rows = torch.isin(facts[0], torch.tensor(prompts, dtype=torch.int64)).nonzero().squeeze(1)
        # A rank that gets nothing still has to know what there is to know of sequences.
        if len(rows) or not prompts:
            leaving[receiver] = own.select(rows)
    arrived = [part for part in engine.exchange_objects(leaving) if part is not None]
    if not dealt[rank]:
        return arrived[0]
    return _in_order(type(arrived[0]).join(arrived), dealt[rank])


def _in_order(items: Sequenced, prompts: Sequence[int]) -> Sequenced:
    """Return the groups of some prompts, in this order."""
    batch = items.batch if isinstance(items, TokenSamples) else items
    groups = Groups(batch.indices)
    places = {prompt: place for place, prompt in enumerate(groups.labels.tolist())}
    return items.select(groups.members([places[prompt] for prompt in prompts]))
