"""`Channel`: what users hold; a name that can be passed around, and the operations on it."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.channel.errors import ChannelClosed
from rlinf.scheduler.channel.local import LocalClient
from rlinf.scheduler.channel.spec import ChannelSpec
from rlinf.scheduler.collective.work import Work
from rlinf.scheduler.current import current_runtime, has_runtime
from rlinf.scheduler.net.interrupts import shielded_methods

if TYPE_CHECKING:
    from rlinf.scheduler.channel.client import ChannelClient

DEFAULT_KEY = "default_queue"

UNTIL_CLOSED = math.inf
"""A `timeout` of those who serve: they wait for as long as the channel lives.

It ends with `ChannelClosed`, or with an error that names the keeper, or the producer that died with
its item; where nobody closes the channel, the runner ends it with its process. How long nobody asks
says nothing.
"""

_SHOWN_ITEMS = 20
_short = reprlib.Repr()
_short.maxother = _short.maxstring = 80


@shielded_methods
class Channel:
    """A queue between workers, with as many keys as one likes.

    Items of a key come out in the order in which they went in; each goes to one consumer. A channel
    can be used in workers, in coroutines (`await channel.get(async_op=True)`) and in the driver. It
    can be an argument of a group call. An item counts as taken by a worker until that worker asks
    for the next one or calls `task_done`.
    """

    def __init__(self, spec: ChannelSpec, local: LocalClient | None = None):
        """Use `create` or `connect`."""
        self._spec = spec
        self._is_local = local is not None
        self._bound: ChannelClient | LocalClient | None = local

    # -- making ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        name: str,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int = 0,
        local: bool = False,
        maxbytes: int = 0,
        redeliver: bool = False,
    ) -> Channel:
        """Make a channel, or connect to the one of that name with the same settings.

        A name whose channel is closed is free: a new channel takes it, and whoever uses the old
        one still sees that it is closed.

        Args:
            name: unique name.
            maxsize: most items per key, 0 for no limit; `put` waits for room.
            distributed: keep the order of different keys on different nodes.
            node_rank: node that keeps the order otherwise.
            local: a channel of this process alone, without a keeper.
            maxbytes: most bytes in the channel, 0 for no limit.
            redeliver: give an item whose consumer dies with it to another one; otherwise everybody
                who uses the channel is told that it was lost.

        Raises:
            ValueError: a setting is out of range, or the channel exists with other settings.
        """
        for label, value in (("maxsize", maxsize), ("maxbytes", maxbytes)):
            if value < 0:
                raise ValueError(f"channel {name!r}: {label}={value} must be 0 (no limit) or more")
        if not name or not isinstance(name, str):
            raise ValueError(f"a channel needs a name, not {name!r}")
        if local:
            limit = current_runtime().run.timeout("channel") if has_runtime() else None
            spec = ChannelSpec(name, maxsize, maxbytes, redeliver)
            return cls(spec, LocalClient(spec, limit))
        runtime = current_runtime()
        keepers = runtime.registry.ask(
            "service",
            service="keepers",
            kwargs={"distributed": distributed, "node_rank": node_rank},
            timeout=runtime.run.timeout("launch"),
            what="the keeper of channels to start",
        )
        spec = ChannelSpec(name, maxsize, maxbytes, redeliver, tuple(keepers))
        place = f"channel {name}"
        known = runtime.registry.ask("put_once", key=place, value=spec)
        while any([work.wait() for work in runtime.channels.ask_all(known, "q.open", known)]):
            # It is closed; somebody else may be creating it again, too.
            known = runtime.registry.ask("replace", key=place, old=known, new=spec.next_of(known))
        if replace(known, incarnation=0) != spec:
            raise ValueError(
                f"channel {name!r} exists with other settings: {known}, not {spec}; use the same "
                "settings or another name, Channel.connect to use it as it is, or close it first"
            )
        return cls(known)

    @classmethod
    def connect(
        cls, name: str, current_worker: Any = None, timeout: float | None = None
    ) -> Channel:
        """Find a channel by its name, waiting for it to be made.

        Args:
            name: its name.
            current_worker: accepted for compatibility.
            timeout: deadline in seconds; `cluster.timeouts.channel` by default.
        """
        runtime = current_runtime()
        spec = runtime.registry.ask(
            "take",
            key=f"channel {name}",
            timeout=runtime.run.timeout("channel") if timeout is None else timeout,
            what=f"channel {name!r} to be created",
        )
        return cls(spec)

    @property
    def name(self) -> str:
        """Name of the channel."""
        return self._spec.name

    @property
    def is_local(self) -> bool:
        """Whether the channel belongs to this process alone."""
        return self._is_local

    # -- putting --------------------------------------------------------------------------------

    def put(
        self,
        item: Any,
        weight: float = 0,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Work | None:
        """Put an item, waiting for room if the channel is full.

        In a channel without bounds the item is on its way when this returns. The item may be
        changed afterwards.

        Raises:
            ChannelClosed: the channel is closed.
            WaitTimeout: there was no room within the deadline.
        """
        work = self._client().put(self._spec, key, item, weight, True, timeout)
        return work if async_op else work.wait()

    def put_nowait(self, item: Any, weight: float = 0, key: Hashable = DEFAULT_KEY) -> None:
        """Put an item, or raise `ChannelFull`."""
        self._client().put(self._spec, key, item, weight, False, None).wait()

    def put_batch(
        self,
        items: Iterable[Any],
        weights: Sequence[float] | None = None,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> list[Work] | None:
        """Put several items in their order."""
        items = list(items)
        weights = [0.0] * len(items) if weights is None else weights
        if len(weights) != len(items):
            raise ValueError(f"put_batch got {len(items)} items and {len(weights)} weights")
        works = [
            self._client().put(self._spec, key, item, weight, True, timeout)
            for item, weight in zip(items, weights, strict=True)
        ]
        if async_op:
            return works
        try:
            for work in works:
                work.wait()
        except BaseException:
            for work in works:
                work.abandon()
            raise
        return None

    # -- getting --------------------------------------------------------------------------------

    def get(
        self, key: Hashable = DEFAULT_KEY, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Take the next item, waiting for one.

        Raises:
            ChannelClosed: the channel is closed and empty.
            WaitTimeout: no item came within the deadline (`cluster.timeouts.channel` by default;
                `UNTIL_CLOSED` is none).
        """
        work = self._client().get(self._spec, key, None, True, timeout)
        return work if async_op else work.wait()

    def get_nowait(self, key: Hashable = DEFAULT_KEY) -> Any:
        """Take the next item, or raise `ChannelEmpty`."""
        return self._client().get(self._spec, key, None, False, None).wait()

    def get_batch(
        self,
        target_weight: float = 0,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Take items until their weights reach `target_weight`.

        Stops before an item that would exceed the target; an item that is heavier than the target
        comes alone, so a batch is never empty. Waits for more items while the batch is too light,
        unless the channel is closed or full. All items of a batch go to one reader, in order.
        """
        work = self._client().get(self._spec, key, target_weight, True, timeout)
        return work if async_op else work.wait()

    def task_done(self) -> None:
        """Say that this process is done with the items that it has taken."""
        self._client().acknowledge(self._spec)

    def __iter__(self) -> Any:
        """Return the items of the default key until the channel is closed."""
        while True:
            try:
                yield self.get()
            except ChannelClosed:
                return

    # -- asking ---------------------------------------------------------------------------------

    def peek_all(self, key: Hashable = DEFAULT_KEY) -> list[Any]:
        """Copy of all items of a key, which stay in the channel."""
        return self._client().ask(self._spec, "peek", key).wait()

    def qsize(self, key: Hashable = DEFAULT_KEY) -> int:
        """Return the number of items of a key."""
        return self._client().ask(self._spec, "qsize", key).wait()

    def empty(self, key: Hashable = DEFAULT_KEY) -> bool:
        """Return whether a key has no items."""
        return self.qsize(key) == 0

    def full(self, key: Hashable = DEFAULT_KEY) -> bool:
        """Return whether a key has no room."""
        return self._client().ask(self._spec, "full", key).wait()

    def keys(self) -> list[Hashable]:
        """Return the keys that are in use."""
        return self._client().keys(self._spec)

    def stats(self) -> dict[str, float]:
        """Return the counters: items, bytes, depth, and how long puts and gets waited."""
        return self._client().stats(self._spec)

    # -- ending ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the channel: readers get what is left, then `ChannelClosed`.

        Raises:
            ChannelError: an item that this process had put was refused.
        """
        self._client().close(self._spec)

    # -- plumbing -------------------------------------------------------------------------------

    def _client(self) -> ChannelClient | LocalClient:
        if self._bound is None:
            self._bound = current_runtime().channels
        return self._bound

    def __reduce__(self) -> tuple[Any, ...]:
        if self._is_local:
            raise TypeError(
                f"channel {self.name!r} is local to its process and cannot be sent to another; "
                "create it without local=True"
            )
        return Channel, (self._spec,)

    def __repr__(self) -> str:
        return f"<Channel {self.name}>"

    def __str__(self) -> str:
        """Return the items of the default key, shortened; they stay in the channel."""
        items = self.peek_all()
        shown = [_short.repr(item) for item in items[:_SHOWN_ITEMS]]
        if len(items) > _SHOWN_ITEMS:
            shown.append(f"and {len(items) - _SHOWN_ITEMS} more")
        return f"<Channel {self.name}: {len(items)} items: [{', '.join(shown)}]>"
