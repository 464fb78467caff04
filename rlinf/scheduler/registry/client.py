"""A process's lifeline: its one connection to the registry."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.deadlines import wait_within
from rlinf.scheduler.errors import ClusterError, WaitTimeout
from rlinf.scheduler.events import Death
from rlinf.scheduler.net.auth import AuthError
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.interrupts import interruptible, shielded_methods
from rlinf.scheduler.net.link_watch import LinkWatch
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Address, answers, connect

if TYPE_CHECKING:
    from rlinf.scheduler.net.certificate import RunTls

_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 2.0
"""Pauses between attempts to join grow: of many that join at once, most wait for their turn."""
_LATER_SECONDS = 2.0


@shielded_methods
class RegistryClient:
    """Asks the registry, answers its questions, and hears of deaths.

    Args:
        addresses: where the registry listens; the first that answers is used.
        secret: secret of the run.
        name: name of this process in the run.
        local: whether the registry is on this node, so that its local socket can be used.
        on_lost: called in the I/O thread when the registry is gone.
        loop: serves the connection.
        timeout: deadline of requests that name no other, and of joining, in seconds.
        reconnect: seconds that the link to the registry may be down.
        tls: of an encrypted run.
    """

    def __init__(
        self,
        addresses: list[Address],
        secret: bytes,
        name: str,
        *,
        local: bool,
        on_lost: Callable[[str], None] | None = None,
        loop: IOLoop | None = None,
        timeout: float = 60.0,
        reconnect: float = 10.0,
        tls: RunTls | None = None,
    ):
        self.name = name
        self.loop = loop or IOLoop()
        self.timeout = timeout
        self.dead: dict[str, Death] = {}
        self._on_lost = on_lost
        self._handlers: dict[str, Callable[[Any], Any]] = {"ping": lambda _: True}
        self._death_watchers: list[Callable[[Death], None]] = []
        self._leave_watchers: list[Callable[[str, WorkerInfo | None], None]] = []
        self._watched: set[str] = set()
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count()
        self._closing = False
        # The registry decides first: it can tell who else is gone.
        self._watch = LinkWatch(
            reconnect + _LATER_SECONDS,
            lambda connections, reason: connections[0].close(reason),
            lambda connection, on_reached: answers(
                connection.identity["address"], secret, name, tls, on_reached
            ),
        )
        usable = [a for a in addresses if local or a[0] != "unix"]
        deadline, pause = time.monotonic() + timeout, _FIRST_RETRY_SECONDS
        error: Exception | None = None
        while True:
            for address in usable:
                try:
                    self._connection = connect(
                        self.loop,
                        address,
                        secret,
                        {"name": name},
                        self._on_message,
                        self._on_close,
                        timeout=max(0.1, deadline - time.monotonic()),
                        tls=tls,
                    )
                    self._watch.add(self._connection)
                    return
                except OSError as failure:
                    error = failure
            # A registry that is slow, or has many to admit, is tried again.
            slow = isinstance(error, _SLOW)
            if not slow or time.monotonic() > deadline:
                break
            interruptible(time.sleep, pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LAST_RETRY_SECONDS)
        raise ClusterError(
            f"{name} cannot reach the registry of the run at {usable}: {error}. On several nodes, "
            "check that the driver's address is reachable from this node (firewall, "
            "RLINF_COMM_NET_DEVICES)."
        ) from error

    # -- asking -------------------------------------------------------------------------------

    def ask(
        self,
        operation: str,
        *,
        timeout: float | None = None,
        what: str = "",
        undo: Undo | None = None,
        **kwargs: Any,
    ) -> Any:
        """Send a request and wait for its answer.

        Args:
            operation: name of the registry's operation.
            timeout: deadline in seconds; `cluster.timeouts.registry` by default.
            what: what is waited for, for the error message.
            undo: operation and arguments that bring back what the request takes; for a request
                that is granted when nobody waits for it any more.
            **kwargs: arguments of the operation.

        Raises:
            WaitTimeout: no answer within the deadline.
        """
        timeout = self.timeout if timeout is None else timeout
        number = next(self._numbers)
        call = self._calls[number] = _Call()
        try:
            self._connection.send(pickle.dumps(("ask", number, operation, kwargs)))
            answered = wait_within(timeout, lambda s: interruptible(call.done.wait, s))
        except ConnectionError as error:
            self._calls.pop(number, None)
            raise ClusterError(f"{self.name} lost the registry of the run: {error}") from error
        except BaseException:
            # Interrupted: what comes is for nobody.
            if self._give_up(number, undo) and undo is not None and call.error is None:
                self.notify(undo[0], **undo[1])
            raise
        if not answered and not self._give_up(number, undo):
            raise WaitTimeout(
                what or f"the registry's answer to {operation!r}",
                waiter=self.name,
                seconds=timeout,
            )
        if call.error is not None:
            raise call.error
        return call.value

    def _give_up(self, number: int, undo: Undo | None) -> bool:
        """Tell the registry to forget a request; True if it has been answered just now."""
        with self._lock:
            if self._calls.pop(number, None) is None:
                return True
        # A registry that is gone grants nothing any more.
        with contextlib.suppress(ConnectionError):
            self._connection.send(pickle.dumps(("forget", number, undo)))
        return False

    def notify(self, operation: str, **kwargs: Any) -> None:
        """Send a request whose answer nobody needs; a lost registry is ignored."""
        try:
            self._connection.send(pickle.dumps(("ask", None, operation, kwargs)))
        except ConnectionError:
            pass

    # -- hearing ------------------------------------------------------------------------------

    def on_inquiry(self, event: str, handler: Callable[[Any], Any]) -> None:
        """Answer an inquiry of the registry with `handler(payload)`, in the I/O thread."""
        self._handlers[event] = handler

    def watch(self, *names: str, life: str = "") -> None:
        """Ask to be told of the ends of members, also of those since this process has joined.

        Those that it has looked up, or that have looked it up, are told without being asked for.
        Never blocks, and costs a message only for names that are new.

        Args:
            *names: the members.
            life: the process that this one depends on; "" if that is whichever has the name.
        """
        fresh = [name for name in names if name not in self._watched]
        if fresh:
            self._watched.update(fresh)
            self.notify("watch", workers=fresh, life=life)

    def on_death(self, watcher: Callable[[Death], None]) -> None:
        """Call `watcher` for each death that this process is told of, in the I/O thread."""
        self._death_watchers.append(watcher)

    def on_leave(self, watcher: Callable[[str, WorkerInfo | None], None]) -> None:
        """Call `watcher(name, info)` for each that leaves on purpose; see `on_death`."""
        self._leave_watchers.append(watcher)

    def _on_message(self, connection: Connection, meta: bytes, buffers: list[memoryview]) -> None:
        kind, *rest = pickle.loads(meta)
        if kind == "answer":
            self._on_answer(*rest)
            return
        event, payload = rest
        if event == "died":
            self.dead[payload.name] = payload
            for watcher in list(self._death_watchers):
                watcher(payload)
        elif event == "left":
            # The registry forgets who is told of a name whose group has been closed.
            self._watched.discard(payload[0])
            for leave_watcher in list(self._leave_watchers):
                leave_watcher(*payload)
        else:
            number, question = payload
            reply: tuple[Any, ...] = ("decline", number)
            if event in self._handlers:
                reply = ("reply", number, self._handlers[event](question))
            # A registry that is gone needs no answer; its end is told by `_on_close`.
            with contextlib.suppress(ConnectionError):
                connection.send(pickle.dumps(reply))

    def _on_answer(self, number: int, value: Any, error: Exception | None) -> None:
        with self._lock:
            call = self._calls.pop(number, None)
            if call is not None:
                call.value, call.error = value, error
        if call is not None:
            call.done.set()

    def _on_close(self, connection: Connection, reason: str) -> None:
        error = ClusterError(f"{self.name} lost the registry of the run: {reason}")
        for number in list(self._calls):
            self._on_answer(number, None, error)
        if not self._closing and self._on_lost is not None:
            self._on_lost(reason)

    def close(self) -> None:
        """End the lifeline on purpose."""
        self._closing = True
        self._watch.stop()
        self._connection.close()


Undo = tuple[str, dict[str, Any]]

_SLOW = (AuthError, TimeoutError, ConnectionResetError, BlockingIOError)
"""What joining a registry raises that has many to admit."""


class _Call:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: Any = None
        self.error: Exception | None = None
