"""The members of a broadcast, kept as ranges of ranks.

Every member works out for itself who the source is, which stream the broadcast belongs to, and that
it takes part. With ranges, that takes no longer in a large group than in a small one. Only the
source needs the names of all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from rlinf.scheduler.address import WorkerAddress

Groups = Sequence[tuple[str, Any]]
"""[(group name, ranks), ...]; ranks are one rank, or a list or range of them.

A rank may be a tuple, the path of a child.
"""


class Members:
    """The members of a broadcast, in an order that does not depend on how they are listed.

    Args:
        groups: who takes part.

    Attributes:
        first: name of the member that is listed first.

    Raises:
        TypeError, ValueError: `groups` is malformed.
    """

    def __init__(self, groups: Groups):
        self.first = ""
        found: dict[str, list[range]] = {}
        for group, listed in _entries(groups):
            for parent, ranks in _ranges(group, listed):
                found.setdefault(parent, []).append(ranks)
            if listed and not self.first:
                self.first = WorkerAddress(group, listed[0]).get_name()
        if not found:
            raise ValueError(f"the groups of a broadcast name no rank: {groups!r}")
        # By the name of their parent, which for most is their group.
        self._ranges = {parent: _merge(parent, found[parent]) for parent in sorted(found)}

    def names(self) -> list[str]:
        """Return the names of all."""
        return [
            f"{parent}:{rank}"
            for parent, ranges in self._ranges.items()
            for ranks in ranges
            for rank in ranks
        ]

    def __contains__(self, name: str) -> bool:
        parent, _, rank = name.rpartition(":")
        return any(int(rank) in ranks for ranks in self._ranges.get(parent, ()))

    def __str__(self) -> str:
        return ", ".join(_text(p, ranks) for p, ranges in self._ranges.items() for ranks in ranges)

    def tag(self, source: str) -> str:
        """Return what is equal for all members of the same broadcast, and for no other one."""
        text = f"{source} to {self}"
        return "broadcast " + hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def _entries(groups: Groups) -> Iterator[tuple[str, list[Any] | range]]:
    """Yield the groups with the ranks of each."""
    if not isinstance(groups, (list, tuple)) or not groups:
        raise TypeError(f"groups must be a list of (group name, ranks), not {groups!r}")
    for entry in groups:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2 or not isinstance(entry[0], str):
            raise TypeError(f"{entry!r} is not a pair of (group name, ranks)")
        group, ranks = entry
        yield group, ranks if isinstance(ranks, (list, range)) else [ranks]


def _ranges(group: str, ranks: list[Any] | range) -> Iterator[tuple[str, range]]:
    """Yield the ranks of a group, each with the name of its parent, in ranges."""
    parent = WorkerAddress(group).get_name()
    if not ranks:
        return
    if isinstance(ranks, range) and ranks.step == 1:
        yield parent, ranks
        return
    if set(map(type, ranks)) == {int}:
        low, high = min(ranks), max(ranks)
        if high - low + 1 == len(ranks) == len(set(ranks)):
            yield parent, range(low, high + 1)
        else:
            for rank in ranks:
                yield parent, range(rank, rank + 1)
        return
    for given in ranks:
        address = WorkerAddress(group, given)
        if not address.ranks:
            raise ValueError(f"({group!r}, {given!r}) in the groups of a broadcast names no rank")
        yield address.get_parent_address().get_name(), range(address.rank, address.rank + 1)


def _merge(parent: str, ranges: list[range]) -> list[range]:
    """Return the ranks below a parent in order, with ranges joined that follow each other."""
    merged: list[range] = []
    for ranks in sorted(ranges, key=lambda ranks: ranks.start):
        if not merged or ranks.start > merged[-1].stop:
            merged.append(ranks)
        elif ranks.start == merged[-1].stop:
            merged[-1] = range(merged[-1].start, ranks.stop)
        else:
            twice = _text(parent, range(ranks.start, min(ranks.stop, merged[-1].stop)))
            raise ValueError(f"{twice} is named twice in the groups of a broadcast")
    return merged


def _text(parent: str, ranks: range) -> str:
    return f"{parent}:{ranks[0]}" + (f"-{ranks[-1]}" if len(ranks) > 1 else "")
