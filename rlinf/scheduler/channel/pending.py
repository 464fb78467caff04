"""A request to a keeper that has not been answered, and the items that were granted to it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol

from rlinf.scheduler.channel.entries import Entry
from rlinf.scheduler.channel.errors import ItemLost
from rlinf.scheduler.channel.spec import ChannelId, ChannelSpec
from rlinf.scheduler.collective.work import Deferred, Work
from rlinf.scheduler.errors import ConnectionBroken, SchedulerError

if TYPE_CHECKING:
    from rlinf.scheduler.collective.payload import Payload

GET_GRACE = 5.0
PUT_GRACE = 60.0
"""Seconds after a deadline in which the keeper says what became of a request.

What a get would have taken goes back if that takes longer; a put cannot be undone.
"""


class Requester(Protocol):
    """Who makes requests; see `ChannelClient`."""

    name: str

    def number(self) -> int:
        """Return a number for a new request."""

    def cancel(self, pending: Pending) -> None:
        """Ask the keeper to forget a request."""

    def note_taken(self, channel: ChannelId, keeper: str, number: int) -> None:
        """Note that the items of a request are in somebody's hands."""

    def give_back(self, pending: Pending, payloads: list[Payload | None]) -> None:
        """Return items that nobody takes."""


class Pending:
    """A request that has not been answered.

    Attributes:
        missing: producer and its life, by position, of the items that are still on their way; None
            before the keeper has answered.
        unreached: positions of items that did not come because the connection to their producer
            broke.
        is_put: whether it puts an item.
        work_source: the connection to the keeper.
    """

    def __init__(
        self,
        client: Requester,
        spec: ChannelSpec,
        key: Hashable,
        keeper: str,
        what: Callable[[], str],
        timeout: float | None,
        *,
        batch: bool = False,
        number: int | None = None,
        grace: float | None = None,
        undo: Callable[[Any], None] | None = None,
    ):
        self.number = client.number() if number is None else number
        self.spec = spec
        self.key = key
        self.keeper = keeper
        self.missing: dict[int, tuple[str, str]] | None = None
        self.unreached: set[int] = set()
        self.is_put = False
        self.work_source: Any = None
        self._client = client
        self._batch = batch
        self._takes = undo is not None
        self._items: list[Payload | None] = []
        self._failure: ItemLost | None = None
        self.work = Work(
            what,
            client.name,
            timeout,
            lambda: client.cancel(self),
            GET_GRACE if grace is None else grace,
            undo=undo,
        )

    def expect(self, entries: list[Entry]) -> None:
        """Note who sends what."""
        self._items = [None] * len(entries)
        self.missing = {
            index: ("", "") if isinstance(entry, int) else entry
            for index, entry in enumerate(entries)
        }

    def fill(self, index: int, payload: Payload) -> None:
        """Take an item."""
        assert self.missing is not None
        self._items[index] = payload
        self.missing.pop(index, None)

    def lose(self, index: int, error: BaseException) -> None:
        """An item is gone with its producer."""
        assert self.missing is not None
        producer, _ = self.missing.pop(index)
        how = f"was lost with its producer {producer}"
        if isinstance(error, ConnectionBroken):
            self.unreached.add(index)
            how = f"did not come from its producer {producer}: the connection to that broke"
            if self._takes and self.spec.redeliver:
                how += "; it is in the channel again, for a consumer that can reach the producer"
        self._failure = ItemLost(f"an item of channel {self.spec.name!r} {how}")
        self._failure.__cause__ = error

    def deliver(self) -> None:
        """All items are here that will come."""
        items, self._items = self._items, []
        if self._failure is not None:
            if self._takes:
                self._client.give_back(self, items)
            self.work.finish(error=self._failure)
        elif self._takes:
            self.work.finish(Granted(self._client, self, items, self._batch))
        else:
            self.work.finish(Batch(items) if self._batch else items[0])


class Batch(Deferred):
    """Items that are decoded together when they are taken."""

    def __init__(self, payloads: list[Any]):
        self.payloads = payloads
        self._values: list[Any] | None = None

    def load(self) -> list[Any]:
        """Return the items."""
        if self._values is None:
            self._values = [payload.load() for payload in self.payloads]
        return self._values


class Granted(Batch):
    """Items that belong to a request: somebody takes them, or they go back."""

    def __init__(self, client: Requester, pending: Pending, payloads: list[Any], batch: bool):
        super().__init__(payloads)
        self._client = client
        self._pending: Pending | None = pending
        self._is_batch = batch

    def load(self) -> Any:
        """Return the items, or the one item."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._client.note_taken(pending.spec.id, pending.keeper, pending.number)
        return super().load() if self._is_batch else self.payloads[0].load()

    def give_back(self) -> None:
        """Nobody takes them."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._client.give_back(pending, self.payloads)


def copies(payload: Payload | None) -> list[bytes]:
    """Return the parts of an item, to send it back; none if it is lost or could not be opened."""
    if payload is None:
        return []
    try:
        if payload.bound:
            from rlinf.scheduler.collective.codec import encode

            encoded = encode(payload.load())
            return [encoded.header, *map(bytes, encoded.buffers)]
        return [bytes(part) for part in payload.parts]
    except SchedulerError:
        return []
