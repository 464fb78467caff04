"""A channel of one process: the same rules, without a keeper and without encoding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import asdict
from typing import Any

from rlinf.scheduler.channel.channel import Channel
from rlinf.scheduler.channel.entries import Get, Item, Put
from rlinf.scheduler.channel.keys import stable_form
from rlinf.scheduler.channel.queues import Queues
from rlinf.scheduler.channel.spec import ChannelId, ChannelSpec
from rlinf.scheduler.collective.work import Work
from rlinf.scheduler.errors import CallCancelled
from rlinf.scheduler.worker.runtime import current_runtime, has_runtime


class LocalChannel(Channel):
    """Hands the items themselves from thread to thread; it cannot leave its process."""

    def __init__(self, spec: ChannelSpec):
        super().__init__(spec)
        self._local = _LocalClient(spec)

    @property
    def is_local(self) -> bool:
        """Whether the channel belongs to this process alone."""
        return True

    def keys(self) -> list[Hashable]:
        """Keys that are in use."""
        return self._local.call(self._local.queues.keys)

    def stats(self) -> dict[str, float]:
        """Counters: items, bytes, depth, and how long puts and gets waited."""
        return self._local.call(lambda: asdict(self._local.queues.stats))

    def close(self) -> None:
        """Closes the channel: readers get what is left, then `ChannelClosed`."""
        self._local.call(self._local.queues.close)

    def _client(self) -> Any:
        return self._local

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"channel {self.name!r} is local to its process and cannot be sent to another; create "
            "it "
            "without local=True"
        )


class _LocalClient:
    """Serves a `Channel` from queues of this process; also the sink of those queues."""

    def __init__(self, spec: ChannelSpec):
        self.queues = Queues(spec.name, self, spec.maxsize, spec.maxbytes)
        # Callbacks of finished work may use the channel again.
        self._lock = threading.RLock()

    def call(self, function: Any) -> Any:
        """Runs something on the queues, one thread at a time."""
        with self._lock:
            return function()

    def put(
        self,
        spec: ChannelSpec,
        key: Hashable,
        obj: Any,
        weight: float,
        wait: bool,
        timeout: float | None,
    ) -> Work:
        """Starts to put an item."""
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
        """Starts to get an item or a batch."""
        what = f"an item of channel {spec.name!r}, key {key!r}"
        work = self._work(what, key, timeout, self._put_back)
        with self._lock:
            self.queues.get(key, Get(work, "", target), wait)
        if target is None:
            return work.then(lambda items: items[0].body)
        return work.then(lambda items: [item.body for item in items])

    def ask(self, spec: ChannelSpec, question: str, key: Hashable = None) -> Work:
        """Answers a question about a key."""
        work = self._work(question, key, None)
        with self._lock:
            answers = {
                "peek": lambda: [item.body for item in self.queues.peek(key)],
                "qsize": lambda: self.queues.size(key),
                "full": lambda: self.queues.full(key),
            }
            work.finish(answers[question]())
        return work

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
        if timeout is None and has_runtime():
            timeout = current_runtime().run.timeout("channel")
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
