"""Serves the registry's state to all processes of the run, from a thread of the driver."""

from __future__ import annotations

import itertools
import pickle
import secrets
import threading
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.events import Death, Raised
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.interrupts import interruptible, shielded_methods
from rlinf.scheduler.net.link_watch import LinkWatch
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Address, Listener
from rlinf.scheduler.registry.state import WAIT, RegistryState, Waiter


@shielded_methods
class RegistryServer:
    """The registry of one run.

    Requests are tuples `("ask", number, operation, kwargs)`, answered by `("answer", number, value,
    error)`. The server also sends events: `("event", name, payload)`.
    """

    def __init__(
        self,
        secret: bytes,
        host: str | None = None,
        reconnect: float = 10.0,
        ports: tuple[int, int] | None = None,
    ):
        """Start to listen.

        Args:
            secret: secret of the run.
            host: address for processes on other nodes; None if there are none.
            reconnect: seconds that the link to another node may be down.
            ports: (lowest, highest) port to listen on; None is any.
        """
        self.state = RegistryState()
        self.services: dict[str, Callable[..., Any]] = {}
        self._loop = IOLoop("rlinf-registry")
        self._members: dict[str, Connection] = {}
        self._leaving: set[str] = set()
        self._waiters: list[Waiter] = []
        self._inquiries: dict[int, _Inquiry] = {}
        self._numbers = itertools.count()
        # Called with the workers whose host is not heard any more, once their ends are recorded.
        self.on_unreachable: Callable[[list[WorkerInfo]], None] = lambda infos: None
        self._unreachable: set[str] = set()
        self._watch = LinkWatch(reconnect, self._on_silent)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        name = f"rlinf-{secrets.token_hex(8)}"
        args = (secret, self._on_message, self._on_close, self._on_connect, self._on_probe)
        self._listeners = [Listener(self._loop, ("unix", name), *args)]
        if host is not None:
            self._listeners.append(Listener(self._loop, ("tcp", host, 0), *args, ports=ports))

    @property
    def addresses(self) -> list[Address]:
        """Where the registry can be reached, nearest first."""
        return [listener.address for listener in self._listeners]

    def close(self) -> None:
        """End the service."""
        self._watch.stop()
        for listener in self._listeners:
            self._loop.call_soon(listener.close)
        self._loop.stop()
        with self._lock:
            for connection in self._members.values():
                connection.sock.close()

    # -- members ------------------------------------------------------------------------------

    def _on_connect(self, connection: Connection) -> None:
        name = connection.identity["name"]
        with self._lock:
            if name in self._members:
                self._depart(name, "it was started anew before its end was noticed")
            self._members[name] = connection
        self._watch.add(connection)

    def _on_probe(self, identity: dict[str, Any]) -> None:
        """A member whose connection is silent shows that it is there."""
        with self._lock:
            connection = self._members.get(identity["name"])
        if connection is not None:
            self._watch.heard(connection)

    def _on_silent(self, connections: list[Connection], reason: str) -> None:
        names = [connection.identity["name"] for connection in connections]
        with self._lock:
            self._unreachable.update(names)
            infos = [info for name in names if (info := self.state.workers.get(name))]
        for connection in connections:
            connection.close(reason)
        for connection in connections:
            connection.over.wait()
        self.on_unreachable(infos)

    def _on_close(self, connection: Connection, reason: str) -> None:
        name = connection.identity["name"]
        with self._lock:
            if self._members.get(name) is connection:
                self._depart(name, reason)

    def _depart(self, name: str, reason: str) -> None:
        del self._members[name]
        for waiter in [w for w in self._waiters if w.member == name]:
            self._waiters.remove(waiter)
            if waiter.undo:
                waiter.undo()
        for inquiry in list(self._inquiries.values()):
            inquiry.missing(name)
        if name in self._leaving:
            self._leaving.discard(name)
            self._broadcast("left", (name, self.state.left(name)))
        else:
            unreachable = name in self._unreachable
            self._broadcast("died", self.state.died(name, reason, unreachable))
        self._retry()

    def _broadcast(self, event: str, payload: Any) -> None:
        data = pickle.dumps(("event", event, payload))
        for connection in list(self._members.values()):
            _send(connection, data)

    def inquire(
        self, event: str, payload: Any, names: list[str] | None, timeout: float
    ) -> dict[str, Any]:
        """Ask members and collect their answers until the deadline.

        Members answer in their I/O thread, also while their own code is busy or stuck.

        Returns:
            The answers by name; members that did not answer are absent.
        """
        with self._lock:
            asked = self.state.workers if names is None else names
            targets = [name for name in asked if name in self._members]
            number = next(self._numbers)
            inquiry = self._inquiries[number] = _Inquiry(set(targets))
            data = pickle.dumps(("event", event, (number, payload)))
            for name in targets:
                _send(self._members[name], data)
        inquiry.wait(timeout)
        with self._lock:
            del self._inquiries[number]
            return dict(inquiry.answers)

    # -- requests -----------------------------------------------------------------------------

    def _on_message(self, connection: Connection, meta: bytes, buffers: list[memoryview]) -> None:
        kind, number, *rest = pickle.loads(meta)
        name = connection.identity["name"]
        with self._lock:
            if kind == "ask":
                self._serve(connection, name, number, *rest)
            elif kind == "reply":
                if number in self._inquiries:
                    self._inquiries[number].take(name, rest[0])
                    self._retry()
            elif kind == "decline":
                # It is still starting, and cannot answer this yet.
                if number in self._inquiries:
                    self._inquiries[number].missing(name)
                    self._retry()
            elif kind == "forget":
                self._forget(connection, name, number, *rest)

    def _serve(
        self, connection: Connection, name: str, number: int, operation: str, kwargs: dict[str, Any]
    ) -> None:
        def answer(value: Any, error: Exception | None = None) -> None:
            _send(connection, pickle.dumps(("answer", number, value, error)))

        try:
            handler = getattr(self, f"_op_{operation}")
            value, undo, changed = handler(name, **kwargs)
            if callable(value):
                result = value()
                if result is WAIT:
                    self._waiters.append(Waiter(value, answer, name, number, undo))
                    return
                value = result
        except Exception as error:
            answer(None, error)
            return
        answer(value)
        if changed:
            self._retry()

    def _forget(
        self, connection: Connection, name: str, number: int, undo: tuple[str, Any] | None
    ) -> None:
        """Give a request up; one that has been granted is undone, since nobody takes the answer."""
        waiting = [w for w in self._waiters if (w.member, w.request) == (name, number)]
        for waiter in waiting:
            self._waiters.remove(waiter)
            if waiter.undo:
                waiter.undo()
        if waiting:
            self._retry()
        elif undo is not None:
            self._serve(connection, name, number, *undo)

    def _retry(self) -> None:
        """Try all waiters again until a round changes nothing."""
        self._changed.notify_all()
        progress = True
        while progress:
            progress = False
            for waiter in list(self._waiters):
                try:
                    value, error = waiter.attempt(), None
                except Exception as failure:
                    value, error = None, failure
                if value is not WAIT:
                    self._waiters.remove(waiter)
                    waiter.answer(value, error)
                    progress = True

    # Each operation returns (value or attempt, undo, whether others may now go on).

    def _op_register(self, name: str, info: WorkerInfo) -> _Result:
        self.state.register(info)
        group = info.address.get_parent_address().get_name()
        self._retry()
        return (lambda: self._registered(info, group)), None, True

    def _registered(self, info: WorkerInfo, group: str) -> Any:
        master = self.state.master(group)
        return WAIT if master is WAIT else (info.incarnation, *master)

    def _op_introduce(self, name: str, info: WorkerInfo) -> _Result:
        self.state.others[name] = info
        return None, None, True

    def _op_ready(self, name: str) -> _Result:
        self.state.ready.add(name)
        return None, None, True

    def _op_lookup(self, name: str, worker: str) -> _Result:
        return (lambda: self.state.lookup(worker)), None, False

    def _op_lives(self, name: str, worker: str) -> _Result:
        info = self.state.workers.get(worker)
        if info is None and worker in self._members:
            info = self.state.others.get(worker)
        return info, None, False

    def _op_responds(self, name: str, worker: str, life: str) -> _Result:
        """Return whether a process lives: it has answered, or it is known to be gone.

        Whoever asks has been told of its end before it gets the answer False.
        """
        info = self.state.workers.get(worker) or self.state.others.get(worker)
        if worker not in self._members or (info is not None and info.life != life):
            return False, None, False
        number = next(self._numbers)
        inquiry = self._inquiries[number] = _Inquiry({worker})
        _send(self._members[worker], pickle.dumps(("event", "ping", (number, None))))

        def attempt() -> Any:
            if not inquiry.complete:
                return WAIT
            self._inquiries.pop(number, None)
            return worker in inquiry.answers

        return attempt, lambda: self._inquiries.pop(number, None), False

    def _op_group(self, name: str, group: str) -> _Result:
        return (lambda: self.state.group(group)), None, False

    def _op_group_size(self, name: str, group: str) -> _Result:
        return (lambda: self.state.group_size(group)), None, False

    def _op_groups(self, name: str) -> _Result:
        return self.state.known_groups(), None, False

    def _op_port(self, name: str, node_rank: int, port: int) -> _Result:
        return self.state.lock_port(name, node_rank, port), None, False

    def _op_acquire(self, name: str, keys: list[str]) -> _Result:
        def give_up() -> None:
            self.state.leave_queue(name, keys)

        return (lambda: self.state.acquire(name, keys)), give_up, False

    def _op_release(self, name: str, keys: list[str]) -> _Result:
        self.state.release(name, keys)
        return None, None, True

    def _op_holders(self, name: str, keys: list[str]) -> _Result:
        return self.state.holders(keys), None, False

    def _op_take(self, name: str, key: str, wait: bool = True) -> _Result:
        if not wait:
            return self.state.values.get(key), None, False
        return (lambda: self.state.values.get(key, WAIT)), None, False

    def _op_put_once(self, name: str, key: str, value: Any) -> _Result:
        return self.state.values.setdefault(key, value), None, True

    def _op_replace(self, name: str, key: str, old: Any, new: Any) -> _Result:
        """Put a new value in the place of an old one; return the value that is there then."""
        if self.state.values.get(key) == old:
            self.state.values[key] = new
        return self.state.values.get(key), None, True

    def _op_raised(self, name: str, report: Raised) -> _Result:
        self.state.raised.append(report)
        return None, None, False

    def _op_expect_exit(self, name: str, names: list[str]) -> _Result:
        self._leaving.update(n for n in names if n in self._members)
        for gone in names:
            if gone not in self._members:
                self.state.left(gone)
        return None, None, False

    def _op_gone(self, name: str, names: list[str]) -> _Result:
        return (lambda: WAIT if any(n in self._members for n in names) else True), None, False

    def _op_tell(self, name: str, event: str, payload: Any, names: list[str]) -> _Result:
        data = pickle.dumps(("event", event, (_NOBODY, payload)))
        for target in names:
            if target in self._members:
                _send(self._members[target], data)
        return None, None, False

    def _op_service(self, name: str, service: str, kwargs: dict[str, Any]) -> _Result:
        """Run something that the driver offers, outside of the I/O thread."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append((self.services[service](**kwargs), None))
            except Exception as error:
                outcome.append((None, error))
            with self._lock:
                self._retry()

        def attempt() -> Any:
            if not outcome:
                return WAIT
            value, error = outcome[0]
            if error is not None:
                raise error
            return value

        threading.Thread(target=run, name=f"rlinf-{service}", daemon=True).start()
        return attempt, None, False

    def _op_deaths(self, name: str) -> _Result:
        return list(self.state.deaths), None, False

    def deaths(self) -> list[Death]:
        """Return all deaths in their order."""
        with self._lock:
            return list(self.state.deaths)

    def await_end(self, name: str, is_gone: Callable[[WorkerInfo], bool], seconds: float) -> None:
        """Wait until the end of a worker is recorded that somebody has noticed otherwise.

        Without it, what an earlier process of this name has left would be taken for what is asked.

        Args:
            name: the worker.
            is_gone: tells whether the process of a worker has ended.
            seconds: how long to wait at most.
        """

        def known() -> bool:
            info = self.state.workers.get(name)
            if info is None:
                return True
            # If it lives, it is the next one of the name.
            return any(d.name == name for d in self.state.deaths) and not is_gone(info)

        with self._changed:
            interruptible(self._changed.wait_for, known, seconds)


_NOBODY = -1
_Result = tuple[Any, Callable[[], None] | None, bool]


class _Inquiry:
    """Answers that are being collected."""

    def __init__(self, open_names: set[str]):
        self._open = open_names
        self._done = threading.Event()
        self.answers: dict[str, Any] = {}
        if not open_names:
            self._done.set()

    def take(self, name: str, answer: Any) -> None:
        self.answers[name] = answer
        self.missing(name)

    def missing(self, name: str) -> None:
        self._open.discard(name)
        if not self._open:
            self._done.set()

    @property
    def complete(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float) -> None:
        interruptible(self._done.wait, timeout)


def _send(connection: Connection, data: bytes) -> None:
    """Send to a member; one that has just gone is reported by its connection's end."""
    try:
        connection.send(data)
    except ConnectionError:
        pass
