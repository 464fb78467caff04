"""Who sends which rows of which tensor to whom: each rank what it has, to those who need it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from rlinf.utils.shards import Rows, ShardPlace

Needs = Mapping[str, Rows | None]
"""Rows of each tensor that a receiver keeps; None is all of them."""


class Request(NamedTuple):
    """What a receiver says before an update.

    Attributes:
        needs: what it keeps; None is everything.
        node: rank of its node.
        base: version that it has, bit for bit as it was sent; None if it has none.
    """

    needs: Needs | None
    node: int
    base: int | None


class PartPlace(NamedTuple):
    """Where the part of a tensor in a message belongs.

    Attributes:
        shape: of the whole tensor.
        rows: which of its rows; None is all of them.
    """

    shape: tuple[int, ...]
    rows: Rows | None

    @property
    def numel(self) -> int:
        """Numbers in it."""
        if self.rows is None:
            return math.prod(self.shape)
        return (self.rows[1] - self.rows[0]) * math.prod(self.shape[1:])


class Stream(NamedTuple):
    """Messages with one content for some receivers.

    Attributes:
        receivers: their ranks.
        needs: what they keep; None is everything.
        far: whether one of them is on another node than the sender.
        base: version that all of them have; None if there is none.
    """

    receivers: list[int]
    needs: Needs | None
    far: bool = False
    base: int | None = None

    def part(
        self, name: str, tensor: Tensor, rows: Rows | None, shape: tuple[int, ...]
    ) -> tuple[Tensor, PartPlace] | None:
        """Return what goes of a sender's part of a tensor; None if nothing does.

        Args:
            name: of the tensor.
            tensor: what the sender has of it.
            rows: which rows these are; None is all of them.
            shape: of the whole tensor.
        """
        wanted = None if self.needs is None else self.needs.get(name)
        if rows is None and wanted is None:
            return tensor, PartPlace(shape, None)
        first, last = (0, shape[0]) if rows is None else rows
        begin, end = (
            (first, last) if wanted is None else (max(first, wanted[0]), min(last, wanted[1]))
        )
        if begin >= end:
            return None
        return tensor[begin - first : end - first], PartPlace(shape, (begin, end))


def streams(requests: Sequence[Request], place: ShardPlace, node: int) -> list[Stream]:
    """Return what one sender sends.

    Of several copies of a model, each serves its share of the receivers.

    Args:
        requests: of each receiver, by rank.
        place: which part of the model the sender has.
        node: rank of the sender's node.
    """
    count = len(requests)
    served = [rank for rank in range(count) if rank * place.copies // count == place.copy]
    everything = [rank for rank in served if requests[rank].needs is None]
    groups = [everything] if everything else []
    groups += [[rank] for rank in served if requests[rank].needs is not None]
    found = []
    for ranks in groups:
        own = [requests[rank] for rank in ranks]
        bases = {request.base for request in own}
        found.append(
            Stream(
                ranks,
                own[0].needs,
                far=any(request.node != node for request in own),
                base=bases.pop() if len(bases) == 1 else None,
            )
        )
    return found


def turns(own: int, count: int, others: int) -> list[int]:
    """Return the order in which a sender meets receivers one by one, or a receiver senders.

    In each turn nobody has two partners, and all agree on who meets whom when.

    Args:
        own: this one's rank.
        count: ranks on this side.
        others: ranks on the other side.
    """
    total = max(count, others)
    order = [(turn - own) % total for turn in range(total)]
    return [rank for rank in order if rank < others]
