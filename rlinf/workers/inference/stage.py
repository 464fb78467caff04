"""A stage between reward and actor: takes groups as they come, adds something, hands them on."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

from rlinf.data.token_batch import TokenBatch
from rlinf.scheduler import UNTIL_CLOSED, Channel


def share_of(total: int, rank: int, world_size: int) -> int:
    """Return how many of some groups a rank takes."""
    return total // world_size + (rank < total % world_size)


def pass_on(
    input_channel: Channel,
    output_channel: Channel,
    *,
    total: int,
    key: Hashable,
    rank: int,
    world_size: int,
    what: str,
    compute: Callable[[TokenBatch], Tensor],
) -> int:
    """Add one number per response token to this rank's share of some groups.

    Each group goes through the model alone: in which company it comes is up to chance, and with
    another company the last bits would be others.

    Args:
        input_channel: where groups come from.
        output_channel: where they go to.
        total: groups of all ranks.
        key: what they wait under, in both channels.
        rank: this one.
        world_size: number of ranks.
        what: name of what is added, one of `rlinf.data.token_batch.GIVEN`.
        compute: gives it, `[R]`. All ranks call it as often; one that has no more groups passes a
            batch without a sequence.

    Returns:
        The number of groups.
    """
    own = share_of(total, rank, world_size)
    for turn in range(share_of(total, 0, world_size)):
        group = input_channel.get(key=key, timeout=UNTIL_CLOSED) if turn < own else None
        batch = TokenBatch.of([] if group is None else [group])
        numbers = compute(batch)
        if group is not None:
            parts = numbers.split(batch.responses.tolist())
            for sample, part in zip(group.samples, parts, strict=True):
                setattr(sample, what, part.tolist())
            output_channel.put(group, key=key)
    return own
