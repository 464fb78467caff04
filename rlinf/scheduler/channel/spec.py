"""What a channel is, and who keeps which of its keys."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from dataclasses import dataclass

KEEPER_GROUP = "ChannelKeeper"


@dataclass(frozen=True)
class ChannelSpec:
    """What a channel is.

    Attributes:
        name: unique name.
        maxsize: most items per key, 0 for no limit.
        maxbytes: most bytes, 0 for no limit.
        redeliver: what happens to an item whose consumer dies with it.
        keepers: names of the processes that keep it; keys are spread over them.
    """

    name: str
    maxsize: int = 0
    maxbytes: int = 0
    redeliver: bool = False
    keepers: tuple[str, ...] = ()


def keeper_of(spec: ChannelSpec, key: Hashable) -> str:
    """The keeper of a key: the same in each process."""
    if len(spec.keepers) == 1:
        return spec.keepers[0]
    return spec.keepers[zlib.crc32(repr(key).encode()) % len(spec.keepers)]
