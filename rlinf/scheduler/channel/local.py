"""The client of a channel of one process: the same rules, without a keeper and without encoding.

It hands the items themselves from thread to thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import asdict
from typing import Any

from rlinf.scheduler.channel.entries import Get, Item, Put
from rlinf.scheduler.channel.keys import stable_form
from rlinf.scheduler.channel.queues import Queues
from rlinf.scheduler.channel.spec import ChannelId, ChannelSpec
from rlinf.scheduler.collective.work import Work
from rlinf.scheduler.errors import CallCancelled


class LocalClient:
    """Serves a channel from queues of this process; also takes the outcomes of those queues.

    Args:
        spec: what the channel is.
        timeout: deadline of requests that name none, in seconds; None is no deadline.
    """

    def __init__(self, spec: ChannelSpec, timeout: float | None = None):
        self.queues = Queues(spec.name, self, spec.maxsize, spec.maxbytes)
        self._timeout = timeout
        # Callbacks of finished work may use the channel again.
        self._lock = threading.RLock()

    def put(
        self,
        spec: ChannelSpec,
        key: Hashable,
        obj: Any,
        weight: float,
        wait: bool,
        timeout: float | None,
    ) -> Work:
        """Start to put an item."""
        work = self._work(f"room in channel {spec.name!r}", key, timeout)
        with self._lock:
            self.queues.put(Put(work, Item(obj, weight, _size_of(obj), "", key)), wait)
        return work

    def get(
        self,
        spec: ChannelSpec,
        key: Hashable,
        target: float | None,
        wait: bool,
        timeout: float | None,
    ) -> Work:
        """Start to get an item or a batch."""
        what = f"an item of channel {spec.name!r}, key {key!r}"
        work = self._work(what, key, timeout, self._put_back)
        with self._lock:
            self.queues.get(key, Get(work, "", target), wait)
        if target is None:
            return work.then(lambda items: items[0].body)
        return work.then(lambda items: [item.body for item in items])

    def ask(self, spec: ChannelSpec, question: str, key: Hashable = None) -> Work:
        """Answer a question about a key."""
        work = self._work(question, key, None)
        with self._lock:
            answers = {
                "peek": lambda: [item.body for item in self.queues.peek(key)],
                "qsize": lambda: self.queues.size(key),
                "full": lambda: self.queues.full(key),
            }
            work.finish(answers[question]())
        return work

    def keys(self, spec: ChannelSpec) -> list[Hashable]:
        """Return the keys that are in use."""
        with self._lock:
            return self.queues.keys()

    def stats(self, spec: ChannelSpec) -> dict[str, float]:
        """Return the counters of the channel."""
        with self._lock:
            return asdict(self.queues.stats)

    def close(self, spec: ChannelSpec) -> None:
        """Close the channel."""
        with self._lock:
            self.queues.close()

    def acknowledge(self, spec: ChannelSpec) -> None:
        """Nothing is kept for redelivery inside one process."""

    def _work(
        self,
        what: str,
        key: Hashable,
        timeout: float | None,
        undo: Callable[[list[Item]], None] | None = None,
    ) -> Work:
        # The same keys as in other channels, so that a program may change from one to the other.
        stable_form(self.queues.name, key)
        if timeout is None:
            timeout = self._timeout
        work = Work(what, "this process", timeout, lambda: self._cancel(key, work), undo=undo)
        return work

    def _put_back(self, items: list[Item]) -> None:
        """Nobody took what was granted."""
        with self._lock:
            self.queues.put_back(items)

    def _cancel(self, key: Hashable, work: Work) -> None:
        with self._lock:
            if self.queues.cancel(key, work):
                work.finish(error=CallCancelled("the request was cancelled"))

    # -- outcomes -------------------------------------------------------------------------------

    def accepted(self, request: Work) -> None:
        """An item is in the queue."""
        request.finish()

    def granted(self, request: Work, items: list[Item], ahead: list[Item]) -> None:
        """Items belong to the asker now."""
        request.finish(items)

    def recall(self, channel: ChannelId, consumer: str, key: Hashable) -> None:
        """Nothing is lent inside one process."""

    def failed(self, request: Work, error: Exception) -> None:
        """A request cannot be served."""
        request.finish(error=error)

    def dropped(self, item: Item) -> None:
        """Nothing is kept."""


def _size_of(obj: Any) -> int:
    return int(getattr(obj, "nbytes", 0) or 0)
