"""Large items that wait with their producer until a consumer is named for them."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    block: Block
    nbytes: int
    again: bool
    keeper: str


class Outbox:
    """Keeps items in shared memory and sends each to the consumer that the keeper names.

    An item is copied into shared memory when it is put, so its owner may change it afterwards. A
    consumer on this node maps the memory; one elsewhere gets the bytes.
    """

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._tickets = itertools.count(1)
        self._entries: dict[int, _Entry] = {}
        self._lock = threading.Lock()
        endpoint.on("q.ship", self._on_ship)
        endpoint.on("q.drop", self._on_drop)
        endpoint.on_end(self._on_end)

    def add(self, encoded: Encoded, keeper: str, again: bool, timeout: float) -> int:
        """Keep an item and return its ticket.

        Args:
            encoded: the item.
            keeper: who keeps its place in the channel.
            again: whether it may have to be delivered more than once; its consumer then works on a
                copy-on-write view.
            timeout: how long to wait for memory.
        """
        owners = (_KEPT, _AGAIN) if again else (_KEPT,)
        parts = [encoded.header, *encoded.buffers]
        block = self._endpoint.packer.pool.write(parts, owners=owners, timeout=timeout)
        ticket = next(self._tickets)
        with self._lock:
            self._entries[ticket] = _Entry(block, encoded.nbytes, again, keeper)
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
        pool = self._endpoint.packer.pool
        if peek or not self._endpoint.shares_memory(consumer):
            flushed = Flushed()
            packed = PackedMessage(self._endpoint.read_own(entry.block), None, entry.nbytes)
            self._endpoint.post(consumer, "q.item", (number, index), packed, flushed)
            flushed.wait(self._endpoint.run.timeout("recv"))
            return
        if entry.again:
            pool.share(entry.block.id, consumer)
        else:
            pool.hand_over(entry.block.id, _KEPT, consumer)
        packed = PackedMessage([], entry.block.descriptor, entry.nbytes)
        self._endpoint.post(consumer, "q.item", (number, index), packed)

    def _on_drop(self, keeper: str, _: Connection, fields: tuple[Any, ...], __: Any) -> None:
        self.drop(fields[0])

    def drop(self, ticket: int) -> None:
        """Let go of an item."""
        with self._lock:
            entry = self._entries.pop(ticket, None)
        if entry is not None:
            pool = self._endpoint.packer.pool
            pool.release(entry.block.id, _KEPT)
            pool.release(entry.block.id, _AGAIN)

    def _on_end(self, peer: str, error: BaseException) -> None:
        """Drop the items that a keeper will never name a consumer for."""
        with self._lock:
            tickets = [ticket for ticket, entry in self._entries.items() if entry.keeper == peer]
        for ticket in tickets:
            self.drop(ticket)

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)
