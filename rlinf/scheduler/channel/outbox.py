"""Large items that wait with their producer until a consumer is named for them."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.channel.device_items import MAX_KEPT_BYTES, DeviceItem
from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.errors import PeerLost
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.flushed import Flushed

if TYPE_CHECKING:
    from rlinf.scheduler.collective.codec import Encoded
    from rlinf.scheduler.collective.shm import Block

_KEPT = "channel items that nobody has taken"
_AGAIN = "channel items that may be delivered again"


@dataclass
class _Entry:
    content: Block | DeviceItem
    nbytes: int
    again: bool
    keeper: str


class Outbox:
    """Keeps items in shared memory and sends each to the consumer that the keeper names.

    An item is copied into shared memory when it is put, so its owner may change it afterwards. A
    consumer on this node maps the memory; one elsewhere gets the bytes. An item with large tensors
    on a GPU is copied there, and goes to shared memory when its consumer is not on that GPU.
    """

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._tickets = itertools.count(1)
        self._entries: dict[int, _Entry] = {}
        self._lock = threading.Lock()
        endpoint.on("q.ship", self._on_ship)
        endpoint.on("q.drop", self._on_drop)
        endpoint.on_end(self._on_end)

    @property
    def device_room(self) -> int:
        """Bytes that items may take on GPUs, besides those that do."""
        with self._lock:
            contents = [entry.content for entry in self._entries.values()]
        kept = sum(item.device_bytes for item in contents if isinstance(item, DeviceItem))
        return MAX_KEPT_BYTES - kept

    def add(self, item: Encoded | DeviceItem, keeper: str, again: bool, timeout: float) -> int:
        """Keep an item and return its ticket.

        Args:
            item: the item.
            keeper: who keeps its place in the channel.
            again: whether it may have to be delivered more than once; its consumer then works on a
                copy-on-write view.
            timeout: how long to wait for memory.
        """
        content: Block | DeviceItem
        if isinstance(item, DeviceItem):
            content = item
        else:
            owners = (_KEPT, _AGAIN) if again else (_KEPT,)
            parts = [item.header, *item.buffers]
            content = self._endpoint.packer.pool.write(parts, owners=owners, timeout=timeout)
        ticket = next(self._tickets)
        with self._lock:
            self._entries[ticket] = _Entry(content, item.nbytes, again, keeper)
        return ticket

    def _on_ship(self, keeper: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        # Reaching a consumer for the first time blocks, and so does sending it a copy.
        self._endpoint.later(self._ship, *fields)

    def _ship(self, ticket: int, consumer: str, number: int, index: int, peek: bool) -> None:
        from rlinf.scheduler.collective.payload import PackedMessage

        with self._lock:
            entry = self._entries.get(ticket)
        if entry is None:
            return
        try:
            self._endpoint.connections.to(consumer)
        except PeerLost:
            # The keeper hears of the consumer's end, too, and decides what becomes of the item.
            return
        block = entry.content
        if isinstance(block, DeviceItem):
            self._ship_encoded(block, consumer, number, index)
            return
        pool = self._endpoint.packer.pool
        if peek or not self._endpoint.shares_memory(consumer):
            flushed = Flushed()
            packed = PackedMessage(self._endpoint.read_own(block), None, entry.nbytes)
            self._endpoint.post(consumer, "q.item", (number, index, False), packed, flushed)
            flushed.wait(self._endpoint.run.timeout("recv"))
            return
        if entry.again:
            pool.share(block.id, consumer)
        else:
            pool.hand_over(block.id, _KEPT, consumer)
        packed = PackedMessage([], block.descriptor, entry.nbytes)
        self._endpoint.post(consumer, "q.item", (number, index, False), packed)

    def _ship_encoded(self, item: DeviceItem, consumer: str, number: int, index: int) -> None:
        """Encode an item for its consumer and send it."""
        endpoint = self._endpoint
        encoded, bound = item.encode_for(endpoint, consumer)
        near = endpoint.shares_memory(consumer)
        limit = endpoint.run.timeout("channel") or 1e9
        packed = endpoint.packer.pack(encoded, (consumer,), near, limit)
        endpoint.post(consumer, "q.item", (number, index, bound), packed)

    def _on_drop(self, keeper: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        self.drop(fields[0])

    def drop(self, ticket: int) -> None:
        """Let go of an item."""
        with self._lock:
            entry = self._entries.pop(ticket, None)
        if entry is not None and not isinstance(entry.content, DeviceItem):
            pool = self._endpoint.packer.pool
            pool.release(entry.content.id, _KEPT)
            pool.release(entry.content.id, _AGAIN)

    def _on_end(self, peer: str, error: BaseException) -> None:
        """Drop the items that a keeper will never name a consumer for."""
        with self._lock:
            tickets = [ticket for ticket, entry in self._entries.items() if entry.keeper == peer]
        for ticket in tickets:
            self.drop(ticket)

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)
