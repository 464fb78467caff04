"""What passes through a channel: items, requests, and who is told what becomes of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlinf.scheduler.channel.spec import ChannelId


@dataclass(slots=True, eq=False)
class Item:
    """One item in a channel.

    Attributes:
        body: the item itself, or where it is; never looked at here.
        weight: what it counts in a batch.
        nbytes: its size.
        producer: who put it.
        key: queue that it is in.
        ticket: number under which its producer keeps it; None if the body is here.
        life: tells the producer from others of its name.
        lost: why it can no longer be had, None normally.
        order: position among all items of the channel.
    """

    body: Any
    weight: float
    nbytes: int
    producer: str
    key: Hashable = None
    ticket: int | None = None
    life: str = ""
    lost: str | None = None
    order: int = 0


Entry = int | tuple[str, str]
"""Where an item is that was granted: so many parts of the message, or with (producer, life)."""


KEPT: Any = object()
"""In the place of an item that did not come because the connection to its producer broke."""


Lent = tuple[int, float, int]
"""An item that was lent: number of its parts, weight and order."""


@dataclass(slots=True, eq=False)
class Put:
    """A request to enqueue an item; `request` identifies it to whoever made it."""

    request: Any
    item: Item
    began: float = field(default_factory=time.perf_counter)


@dataclass(slots=True, eq=False)
class Get:
    """A request for one item, or for a batch of a total weight.

    Attributes:
        request: identifies it to whoever made it.
        consumer: who asks.
        target: weight of the batch; None for one item.
        wait: whether it waits for items.
        done: earlier requests whose items the consumer is done with; None if with all.
        began: when it came.
    """

    request: Any
    consumer: str
    target: float | None = None
    wait: bool = True
    done: Collection[Any] | None = None
    began: float = field(default_factory=time.perf_counter)


class Sink(Protocol):
    """Who is told the outcome of requests."""

    def accepted(self, request: Any) -> None:
        """An item is in the queue."""

    def granted(self, request: Any, items: list[Item], ahead: list[Item]) -> None:
        """Items belong to the asker now; some more are lent to it."""

    def recall(self, channel: ChannelId, consumer: str, key: Hashable) -> None:
        """A consumer is to say `returned`: it must take no more of the items lent to it."""

    def failed(self, request: Any, error: Exception) -> None:
        """A request cannot be served."""

    def dropped(self, item: Item) -> None:
        """An item is done with and need not be kept for anybody."""


@dataclass
class Stats:
    """Counters of a channel since it was made; `depth` and `bytes` are those of now."""

    puts: int = 0
    gets: int = 0
    put_bytes: int = 0
    depth: int = 0
    bytes: int = 0
    max_depth: int = 0
    put_wait_seconds: float = 0.0
    get_wait_seconds: float = 0.0
    redelivered: int = 0
    lost: int = 0
