"""The rules of a channel: keys, order, bounds, weighted batches, closing and who holds what.

Pure state without threads or sockets. A request that cannot be served yet waits in its key's line
and is served, in order, as soon as a change allows it. A key that is empty and unused does not
exist.

Items may be lent ahead: while one consumer alone reads a key, it is shown the next few items before
it asks, so that it can take them without a round trip. They count as in the channel until it says
that it has taken them. When anybody else asks, the loan is recalled first, so order is kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rlinf.scheduler.channel.entries import KEPT, Get, Item, Put, Sink, Stats
from rlinf.scheduler.channel.errors import ChannelClosed, ChannelEmpty, ChannelFull, ItemLost


@dataclass(slots=True, eq=False)
class _Line:
    """One key: items, or askers; and puts that wait for room.

    Attributes:
        items: what is in the queue and not lent.
        gets: who waits for items.
        puts: who waits for room.
        readers: who has got items.
        loans: items that are lent, by consumer.
        recalled: consumers whose loans have been recalled.
    """

    items: deque[Item] = field(default_factory=deque)
    gets: deque[Get] = field(default_factory=deque)
    puts: deque[Put] = field(default_factory=deque)
    readers: set[str] = field(default_factory=set)
    loans: dict[str, deque[Item]] = field(default_factory=dict)
    recalled: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.items) + sum(map(len, self.loans.values()))


class Queues:
    """All queues of one channel.

    Args:
        name: name of the channel.
        sink: who is told the outcomes.
        maxsize: most items per key, 0 for no limit.
        maxbytes: most bytes in the channel, 0 for no limit.
        redeliver: whether an item whose consumer dies before it asks for the next one goes to
            another consumer; otherwise the channel reports it as lost to everybody who uses it.
        ahead: most items to lend.
        incarnation: tells the channel from closed ones that had its name.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        maxsize: int = 0,
        maxbytes: int = 0,
        redeliver: bool = False,
        ahead: int = 0,
        incarnation: int = 0,
    ):
        self.name = name
        self.id = name, incarnation
        self.maxsize = maxsize
        self.maxbytes = maxbytes
        self.redeliver = redeliver
        self.ahead = ahead
        self.closed = False
        self.broken: str | None = None
        self.stats = Stats()
        self._sink = sink
        self._lines: dict[Hashable, _Line] = {}
        self._held: dict[str, list[tuple[Any, Item]]] = {}
        self._order = 0

    @property
    def finished(self) -> bool:
        """Whether the channel is closed, nothing is in it and nobody holds anything of it."""
        return self.closed and not self._lines and not self._held

    # -- requests -------------------------------------------------------------------------------

    def put(self, put: Put, wait: bool = True) -> None:
        """Enqueue an item, or let the request wait for room, or refuse it."""
        error = self._refusal()
        if error is None and self.closed:
            error = ChannelClosed(f"channel {self.name!r} is closed; nothing can be put into it")
        if error is not None:
            self._sink.dropped(put.item)
            self._sink.failed(put.request, error)
            return
        line = self._line(put.item.key)
        if not line.puts and self._has_room(line, put.item):
            self._enqueue(line, put)
            self._serve(put.item.key, line)
        elif wait:
            line.puts.append(put)
            self._serve_batches()
        else:
            bound = f"{self.maxsize} items" if self.maxsize else f"{self.maxbytes} bytes"
            self._sink.dropped(put.item)
            self._sink.failed(
                put.request,
                ChannelFull(f"channel {self.name!r} is full (it holds at most {bound})"),
            )
            self._forget_if_unused(put.item.key)

    def take_back(self, consumer: str, request: Any, bodies: list[Any]) -> None:
        """Put items that were granted but never taken in front of their queue.

        Args:
            consumer: who returns them.
            request: the request that they were granted to.
            bodies: the items themselves, in order; the consumer had become their only owner. None
                for one that is lost, `KEPT` for one that did not come and is with its producer.
        """
        held = self._held.pop(consumer, [])
        items = [item for owner, item in held if owner == request]
        kept = [(owner, item) for owner, item in held if owner != request]
        if kept:
            self._held[consumer] = kept
        self.stats.gets -= len(items)
        there = []
        for item, body in zip(items, bodies, strict=True):
            if body is KEPT and self.redeliver and not item.lost:
                # Another consumer may reach its producer.
                self.stats.redelivered += 1
                there.append(item)
                continue
            body = None if body is KEPT else body
            if item.ticket is not None:
                self._sink.dropped(item)
                item.ticket = None
            item.body = body
            if body is not None:
                there.append(item)
        self.stats.lost += len(items) - len(there)
        self.put_back(there)

    def restore(self, consumer: str, item: Item) -> None:
        """Put an item where it was that a consumer had been lent, took and did not use after all.

        It may have said since that it is done with it.
        """
        held = self._held.pop(consumer, [])
        kept = [(owner, other) for owner, other in held if other.order != item.order]
        if kept:
            self._held[consumer] = kept
        self.stats.gets -= 1
        self.put_back([item])

    def put_back(self, items: list[Item]) -> None:
        """Put items into their queues again, where they were."""
        for key in dict.fromkeys(item.key for item in items):
            line = self._line(key)
            returned = [item for item in items if item.key == key]
            for item in returned:
                self._count_in(item)
            line.items = deque(sorted([*returned, *line.items], key=lambda item: item.order))
            self._serve(key, line)

    def get(self, key: Hashable, get: Get, wait: bool = True) -> None:
        """Grant items, or let the request wait for them, or refuse it."""
        self.acknowledge(get.consumer, get.done)
        error = self._refusal()
        if error is not None:
            self._sink.failed(get.request, error)
            return
        line = self._line(key)
        get.wait = wait
        line.gets.append(get)
        self._serve(key, line)

    def cancel(self, key: Hashable, request: Any) -> bool:
        """Take a request that still waits out of its line; False if it has been served."""
        line = self._lines.get(key)
        if line is None:
            return False
        for waiting in (line.gets, line.puts):
            for entry in waiting:
                if entry.request == request:
                    waiting.remove(entry)
                    if isinstance(entry, Put):
                        self._sink.dropped(entry.item)
                    self._serve(key, line)
                    return True
        return False

    def close(self) -> None:
        """Refuse further items; readers get what is left and then `ChannelClosed`."""
        self.closed = True
        for key, line in list(self._lines.items()):
            while line.puts:
                put = line.puts.popleft()
                self._sink.dropped(put.item)
                self._sink.failed(put.request, ChannelClosed(f"channel {self.name!r} was closed"))
            self._serve(key, line)

    # -- lending ----------------------------------------------------------------------------------

    def take(self, consumer: str, key: Hashable, done: Collection[Any] | None = None) -> None:
        """A consumer has taken the next of the items that are lent to it."""
        self.acknowledge(consumer, done)
        line = self._lines[key]
        loan = line.loans[consumer]
        item = loan.popleft()
        if not loan:
            self._end_loan(line, consumer)
        self._count_out(item)
        self.stats.gets += 1
        self._held.setdefault(consumer, []).append((None, item))
        self._admit(key, line)
        self._serve(key, line)

    def returned(self, consumer: str, key: Hashable) -> None:
        """A consumer will take no more of the items that are lent to it."""
        line = self._lines.get(key)
        if line is not None:
            self._end_loan(line, consumer)
            self._serve(key, line)

    def _lend(self, line: _Line, consumer: str) -> list[Item]:
        """Lend the next items to a consumer that has just got one, if it has come before."""
        known = consumer in line.readers
        line.readers.add(consumer)
        if not known or len(line.readers) > 1 or line.gets:
            return []
        ahead: list[Item] = []
        while len(ahead) < self.ahead and line.items:
            if line.items[0].ticket is not None or line.items[0].lost:
                break
            ahead.append(line.items.popleft())
        if ahead:
            line.loans[consumer] = deque(ahead)
        return ahead

    def _recall(self, key: Hashable, line: _Line) -> None:
        for consumer in line.loans.keys() - line.recalled:
            line.recalled.add(consumer)
            self._sink.recall(self.id, consumer, key)

    def _end_loan(self, line: _Line, consumer: str) -> None:
        """What a consumer has not taken goes back to its place in the queue."""
        line.recalled.discard(consumer)
        loan = line.loans.pop(consumer, None)
        if loan:
            line.items = deque(sorted([*loan, *line.items], key=lambda item: item.order))

    # -- questions --------------------------------------------------------------------------------

    def peek(self, key: Hashable) -> list[Item]:
        """Return the items of a key, which stay where they are."""
        line = self._lines.get(key)
        if line is None:
            return []
        items = [item for loan in line.loans.values() for item in loan] + list(line.items)
        return sorted((i for i in items if i.lost is None), key=lambda item: item.order)

    def size(self, key: Hashable) -> int:
        """Return the number of items of a key."""
        line = self._lines.get(key)
        return len(line) if line is not None else 0

    def full(self, key: Hashable) -> bool:
        """Return whether a key has no room for another item."""
        if self.maxbytes and self.stats.bytes >= self.maxbytes:
            return True
        return bool(self.maxsize) and self.size(key) >= self.maxsize

    def keys(self) -> list[Hashable]:
        """Return the keys that have items or waiting requests."""
        return list(self._lines)

    def waiting(self) -> Iterator[tuple[Hashable, Get | Put]]:
        """All requests that wait."""
        for key, line in self._lines.items():
            for entry in (*line.gets, *line.puts):
                yield key, entry

    # -- who holds what ---------------------------------------------------------------------------

    def acknowledge(self, consumer: str, done: Collection[Any] | None = None) -> None:
        """A consumer is done with what it has taken.

        Args:
            consumer: its name.
            done: requests whose items it has taken, beside those that were lent; None if it has
                taken all that was granted.
        """
        held = self._held.pop(consumer, None)
        if held is None:
            return
        kept = []
        for owner, item in held:
            if done is None or owner is None or owner in done:
                self._sink.dropped(item)
            else:
                kept.append((owner, item))
        if kept:
            self._held[consumer] = kept

    def consumer_gone(self, consumer: str, broken: bool = False) -> None:
        """Deal with the items that a consumer had taken, and with its requests.

        Args:
            consumer: who died or cannot be reached any more.
            broken: whether it lives and only the connection to it broke.
        """
        for line in self._lines.values():
            self._end_loan(line, consumer)
            line.readers.discard(consumer)
        self._forget_requests(consumer)
        held = self._held.pop(consumer, [])
        if self.redeliver:
            self.stats.redelivered += len(held)
            self.stats.lost += sum(item.lost is not None for _, item in held)
            self.put_back([item for _, item in held])
        for key, line in list(self._lines.items()):
            self._serve(key, line)
        if held and not self.redeliver:
            for _, item in held:
                self._sink.dropped(item)
            self.stats.lost += len(held)
            how = "lost its connection to the channel" if broken else "died"
            self._break(
                f"{consumer} {how} with {len(held)} item(s) of channel {self.name!r} that it had "
                "taken and not finished; create the channel with redeliver=True to give such items "
                "to another consumer"
            )

    def producer_gone(self, producer: str, broken: bool = False) -> None:
        """Deal with items that are with a producer.

        Args:
            producer: who died or cannot be reached any more.
            broken: whether it lives and only the connection to it broke.
        """
        self._forget_requests(producer)
        reason = f"an item of channel {self.name!r} was lost with its producer {producer}"
        if broken:
            reason += ", to which the connection broke"
        for key, line in list(self._lines.items()):
            for item in line.items:
                if item.producer == producer and item.lost is None and item.ticket is not None:
                    item.lost = reason
                    self.stats.lost += 1
            self._serve(key, line)
        for held in self._held.values():
            for _, item in held:
                if item.producer == producer and item.ticket is not None:
                    # Its consumer has it; nobody else can have it after that one.
                    item.lost = reason

    def _break(self, reason: str) -> None:
        """From now on every use of the channel says what was lost; nobody can get the rest."""
        self.broken = reason
        for key, line in list(self._lines.items()):
            self._recall(key, line)
            for entry in (*line.gets, *line.puts):
                self._sink.failed(entry.request, ItemLost(reason))
            for put in line.puts:
                self._sink.dropped(put.item)
            line.gets.clear()
            line.puts.clear()
            self._discard_items(line)
            self._forget_if_unused(key)

    def _discard_items(self, line: _Line) -> None:
        for item in line.items:
            self._count_out(item)
            self._sink.dropped(item)
        line.items.clear()

    def _refusal(self) -> Exception | None:
        return ItemLost(self.broken) if self.broken else None

    def _forget_requests(self, member: str) -> None:
        for line in self._lines.values():
            line.gets = deque(g for g in line.gets if g.consumer != member)
            line.puts = deque(p for p in line.puts if p.item.producer != member)

    # -- serving ----------------------------------------------------------------------------------

    def _serve(self, key: Hashable, line: _Line) -> None:
        """Serve the requests of a key, first come first served, as far as the items go."""
        if self.broken:
            self._discard_items(line)
        while line.gets:
            get = line.gets[0]
            count = None if line.loans else self._match(line, get)
            if count is None:
                self._recall(key, line)
                break
            self._grant(line, line.gets.popleft(), count)
            self._admit(key, line)
        if not line.loans and not all(get.wait for get in line.gets):
            self._refuse_impatient(key, line)
        if self.closed and not len(line):
            while line.gets:
                self._sink.failed(
                    line.gets.popleft().request, ChannelClosed(f"channel {self.name!r} is closed")
                )
        self._forget_if_unused(key)

    def _refuse_impatient(self, key: Hashable, line: _Line) -> None:
        """Requests that wait for nothing but the return of loans; there was nothing in them."""
        for get in [get for get in line.gets if not get.wait]:
            line.gets.remove(get)
            error = ChannelEmpty(f"channel {self.name!r} has no item for {key!r}")
            self._sink.failed(get.request, error)

    def _match(self, line: _Line, get: Get) -> int | None:
        """Return how many items from the front serve a request; None if it has to wait."""
        if not line.items:
            return None
        if get.target is None or line.items[0].lost:
            return 1
        total, count = 0.0, 0
        for item in line.items:
            if item.lost or (count and total + item.weight > get.target):
                # The next one does not fit: what is there is the batch.
                return count
            total += item.weight
            count += 1
            if total >= get.target:
                return count
        # More will come, unless the channel is closed, or is full and so cannot take it.
        return count if self.closed or self._is_stuck(line) else None

    def _is_stuck(self, line: _Line) -> bool:
        if line.puts:
            return True
        return bool(self.maxbytes) and any(other.puts for other in self._lines.values())

    def _serve_batches(self) -> None:
        """A put waits for room that batches, waiting for more items, may be holding."""
        if self.maxbytes:
            for key, line in list(self._lines.items()):
                if line.gets and line.items:
                    self._serve(key, line)

    def _grant(self, line: _Line, get: Get, count: int) -> None:
        items = [line.items.popleft() for _ in range(count)]
        for item in items:
            self._count_out(item)
        self.stats.get_wait_seconds += time.perf_counter() - get.began
        if items[0].lost:
            self._sink.failed(get.request, ItemLost(items[0].lost))
            return
        self.stats.gets += count
        self._held.setdefault(get.consumer, []).extend((get.request, item) for item in items)
        ahead = self._lend(line, get.consumer) if self.ahead and get.target is None else []
        self._sink.granted(get.request, items, ahead)

    def _admit(self, key: Hashable, line: _Line) -> None:
        """Let puts in that wait for the room which a grant has made."""
        while line.puts and self._has_room(line, line.puts[0].item):
            self._enqueue(line, line.puts.popleft())
        if self.maxbytes:
            # Bytes are shared by all keys, so the room may be another key's.
            for other, waiting in list(self._lines.items()):
                if other != key and waiting.puts and self._has_room(waiting, waiting.puts[0].item):
                    self._enqueue(waiting, waiting.puts.popleft())
                    self._serve(other, waiting)

    def _has_room(self, line: _Line, item: Item) -> bool:
        if self.maxsize and len(line) >= self.maxsize:
            return False
        if not self.maxbytes or not self.stats.bytes:
            return True
        return self.stats.bytes + item.nbytes <= self.maxbytes

    def _enqueue(self, line: _Line, put: Put) -> None:
        self._order += 1
        put.item.order = self._order
        line.items.append(put.item)
        self._count_in(put.item)
        self.stats.puts += 1
        self.stats.put_bytes += put.item.nbytes
        self.stats.put_wait_seconds += time.perf_counter() - put.began
        self._sink.accepted(put.request)

    def _count_in(self, item: Item) -> None:
        stats = self.stats
        stats.depth += 1
        stats.bytes += item.nbytes
        stats.max_depth = max(stats.max_depth, stats.depth)

    def _count_out(self, item: Item) -> None:
        self.stats.depth -= 1
        self.stats.bytes -= item.nbytes

    def _line(self, key: Hashable) -> _Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        return line

    def _forget_if_unused(self, key: Hashable) -> None:
        line = self._lines.get(key)
        if line is not None and not (line.items or line.gets or line.puts or line.loans):
            del self._lines[key]
