"""The nodes that this process has lost; a later cluster of the same process does without them.

Ray takes much longer to notice, and until then would name them among its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

_lost: set[str] = set()


def note_lost(ray_ids: Iterable[str]) -> None:
    """Remember that nodes, by Ray's ids of them, cannot be reached any more."""
    _lost.update(ray_ids)


def lost_nodes() -> frozenset[str]:
    """Return Ray's ids of the nodes that this process has lost."""
    return frozenset(_lost)
