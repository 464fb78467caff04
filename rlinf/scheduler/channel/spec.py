"""What a channel is, and who keeps which of its keys."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from dataclasses import dataclass, replace

from rlinf.scheduler.channel.keys import stable_form

KEEPER_GROUP = "ChannelKeeper"


ChannelId = tuple[str, int]
"""Name and incarnation of a channel: those that had a name one after the other differ by it."""


@dataclass(frozen=True)
class ChannelSpec:
    """What a channel is.

    Attributes:
        name: unique name.
        maxsize: most items per key, 0 for no limit.
        maxbytes: most bytes, 0 for no limit.
        redeliver: what happens to an item whose consumer dies with it.
        keepers: names of the processes that keep it; keys are spread over them.
        incarnation: how many closed channels had the name before.
    """

    name: str
    maxsize: int = 0
    maxbytes: int = 0
    redeliver: bool = False
    keepers: tuple[str, ...] = ()
    incarnation: int = 0

    @property
    def id(self) -> ChannelId:
        """What tells the channel from others that had its name."""
        return self.name, self.incarnation

    def next_of(self, earlier: ChannelSpec) -> ChannelSpec:
        """Return the same settings for a channel that takes the name of a closed one."""
        return replace(self, incarnation=earlier.incarnation + 1)


def keeper_of(spec: ChannelSpec, key: Hashable) -> str:
    """Return the keeper of a key: the same in each process.

    Raises:
        ValueError: the key cannot be used; see `stable_form`.
    """
    count = len(spec.keepers)
    if count == 1 and type(key) in (str, int):
        return spec.keepers[0]
    return spec.keepers[zlib.crc32(stable_form(spec.name, key)) % count]
