"""Serves the registry's state to all processes of the run, from a thread of the driver."""

from __future__ import annotations

import itertools
import pickle
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.events import Death, Raised
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.interrupts import interruptible, shielded_methods
from rlinf.scheduler.net.link_watch import LinkWatch
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Address, Listener, address_on_link, answers
from rlinf.scheduler.registry.descriptors import allow_descriptors
from rlinf.scheduler.registry.inquiries import Inquiries
from rlinf.scheduler.registry.state import RegistryState
from rlinf.scheduler.registry.waiters import Wait, Waiter, Waiters
from rlinf.scheduler.registry.watches import Departure, Watches

if TYPE_CHECKING:
    from rlinf.scheduler.net.certificate import RunTls

_NAME = "registry"
"""How it names itself to members that it probes."""


@shielded_methods
class RegistryServer:
    """The registry of one run.

    Requests are tuples `("ask", number, operation, kwargs)`, answered by `("answer", number, value,
    error)`, or not at all if the number is None. The server also sends events: `("event", name,
    payload)`.

    Attributes:
        state: what it knows.
        services: what the driver offers, by name.
        received: messages of members so far.
        sent: messages to members so far.
    """

    def __init__(
        self,
        secret: bytes,
        host: str | None = None,
        reconnect: float = 10.0,
        ports: tuple[int, int] | None = None,
        tls: RunTls | None = None,
    ):
        """Start to listen.

        Args:
            secret: secret of the run.
            host: address for processes on other nodes; None if there are none.
            reconnect: seconds that the link to another node may be down.
            ports: (lowest, highest) port to listen on; None is any.
            tls: of an encrypted run.
        """
        self.state = RegistryState()
        self.services: dict[str, Callable[..., Any]] = {}
        self.received = self.sent = 0
        self._loop = IOLoop("rlinf-registry")
        self._members: dict[str, Connection] = {}
        self._leaving: set[str] = set()
        self._fits = True
        self._waiters = Waiters()
        self._watches = Watches()
        self._inquiries = Inquiries(lambda number: self.state.changes.append(("inquiry", number)))
        # Joins and ends in their order: whoever has joined later is not told of an end.
        self._moments = itertools.count()
        self._joined: dict[str, int] = {}
        self._departures: dict[str, Departure] = {}
        self._numbers = itertools.count()
        # Called with the workers whose host is not heard any more, once their ends are recorded.
        self.on_unreachable: Callable[[list[WorkerInfo]], None] = lambda infos: None
        self._unreachable: set[str] = set()
        self._secret, self._tls = secret, tls
        self._watch = LinkWatch(reconnect, self._on_silent, self._answers)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        name = f"rlinf-{secrets.token_hex(8)}"
        args = (secret, self._on_message, self._on_close, self._on_connect, self._on_probe)
        self._listeners = [Listener(self._loop, ("unix", name), *args)]
        if host is not None:
            self._listeners.append(Listener(self._loop, ("tcp", host, 0), *args, ports, tls))

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
            self._joined[name] = next(self._moments)
            self._fits = self._fits and allow_descriptors(len(self._members))
        self._watch.add(connection)

    def _on_probe(self, identity: dict[str, Any]) -> None:
        """A member whose connection is silent shows that it is there."""
        with self._lock:
            connection = self._members.get(identity["name"])
        if connection is not None:
            self._watch.heard(connection)

    def _answers(self, connection: Connection, on_reached: Callable[[], None]) -> bool:
        """Find out by a new connection whether the member of a silent one can be reached."""
        with self._lock:
            info = self.state.workers.get(connection.identity["name"])
        address = address_on_link(connection, info.endpoints) if info else None
        return address is not None and answers(address, self._secret, _NAME, self._tls, on_reached)

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
        del self._members[name], self._joined[name]
        for waiter in self._waiters.of_member(name):
            self._give_up(waiter)
        self._inquiries.member_gone(name)
        leaves, unreachable = name in self._leaving, name in self._unreachable
        self._leaving.discard(name)
        self._unreachable.discard(name)
        info = self.state.workers.get(name) or self.state.others.get(name)
        life = info.life if info is not None else ""
        told: tuple[str, Any]
        if leaves:
            told = "left", (name, self.state.left(name))
        else:
            told = "died", self.state.died(name, reason, unreachable)
        self._departures[name] = Departure(next(self._moments), life, *told, told=set())
        self._tell_end(name, self._watches.watchers_of(name))
        self._watches.forget_watcher(name)
        if leaves:
            self._watches.forget_watched(name)
        self.state.changes.append(("member", name))
        self._changed.notify_all()
        self._settle()

    def _tell_end(self, name: str, members: list[str]) -> None:
        """Tell members of the latest end under a name, each once."""
        last = self._departures[name]
        data = pickle.dumps(("event", last.event, last.payload))
        for member in members:
            if member in self._members and member not in last.told:
                last.told.add(member)
                self._send(self._members[member], data)

    def _has_missed(self, member: str, name: str, life: str) -> bool:
        """Return whether an end concerns a member that nobody could know of when it came."""
        last = self._departures.get(name)
        if last is None:
            return False
        if life:
            return life == last.life
        return name not in self._members and last.moment > self._joined[member]

    def _send(self, connection: Connection, data: bytes) -> None:
        """Send to a member; one that has just gone is reported by its connection's end."""
        self.sent += 1
        try:
            connection.send(data)
        except ConnectionError:
            pass

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
            inquiry = self._inquiries.ask(name for name in asked if name in self._members)
            data = pickle.dumps(("event", event, (inquiry.number, payload)))
            for name in list(inquiry.open):
                self._send(self._members[name], data)
        inquiry.wait(timeout)
        with self._lock:
            self._inquiries.end(inquiry.number)
            return dict(inquiry.answers)

    # -- requests -----------------------------------------------------------------------------

    def _on_message(self, connection: Connection, meta: bytes, buffers: list[memoryview]) -> None:
        kind, number, *rest = pickle.loads(meta)
        name = connection.identity["name"]
        with self._lock:
            self.received += 1
            if kind == "ask":
                self._serve(connection, name, number, *rest)
            elif kind == "reply":
                self._inquiries.take(number, name, rest[0])
            elif kind == "decline":
                # It is still starting, and cannot answer this yet.
                self._inquiries.decline(number, name)
            elif kind == "forget":
                self._forget(connection, name, number, *rest)
            self._settle()

    def _serve(
        self,
        connection: Connection,
        name: str,
        number: int | None,
        operation: str,
        kwargs: dict[str, Any],
    ) -> None:
        def answer(value: Any, error: Exception | None = None) -> None:
            if number is not None:
                self._send(connection, pickle.dumps(("answer", number, value, error)))

        try:
            outcome = getattr(self, f"_op_{operation}")(name, **kwargs)
        except Exception as error:
            answer(None, error)
            return
        if isinstance(outcome, _Attempt):
            self._try(Waiter(outcome.attempt, answer, name, number, outcome.undo))
        else:
            answer(outcome)

    def _try(self, waiter: Waiter) -> None:
        """Answer a request, or let it wait for what it says."""
        try:
            value, error = waiter.attempt(), None
        except Exception as failure:
            value, error = None, failure
        if isinstance(value, Wait):
            self._waiters.put(waiter, value.topic)
            return
        self._waiters.remove(waiter)
        waiter.answer(value, error)

    def _settle(self) -> None:
        """Try again those who wait for what has changed, until nothing more changes."""
        changes = self.state.changes
        while changes:
            topic = changes.popleft()
            for waiter in self._waiters.of(topic):
                # One of those before it may have ended its wait.
                if waiter.topic == topic:
                    self._try(waiter)

    def _give_up(self, waiter: Waiter) -> None:
        self._waiters.remove(waiter)
        if waiter.undo:
            waiter.undo()

    def _forget(
        self, connection: Connection, name: str, number: int, undo: tuple[str, Any] | None
    ) -> None:
        """Give a request up; one that has been granted is undone, since nobody takes the answer."""
        waiter = self._waiters.find(name, number)
        if waiter is not None:
            self._give_up(waiter)
        elif undo is not None:
            self._serve(connection, name, None, *undo)

    # Each operation returns its value, or an attempt if it may have to wait.

    def _op_register(self, name: str, info: WorkerInfo) -> _Attempt:
        self.state.register(info)
        self._changed.notify_all()
        group = info.address.get_parent_address().get_name()

        def attempt() -> Any:
            master = self.state.master(group)
            return master if isinstance(master, Wait) else (info.incarnation, *master)

        return _Attempt(attempt)

    def _op_introduce(self, name: str, info: WorkerInfo) -> None:
        self.state.introduce(name, info)

    def _op_ready(self, name: str) -> None:
        self.state.make_ready(name)

    def _op_lookup(self, name: str, worker: str) -> _Attempt:
        # Who looks a worker up connects to it, and each needs to know when the other ends.
        self._watches.add_both(name, worker)
        return _Attempt(lambda: self.state.lookup(worker))

    def _op_lives(self, name: str, worker: str) -> WorkerInfo | None:
        info = self.state.workers.get(worker)
        if info is None and worker in self._members:
            info = self.state.others.get(worker)
        if info is not None:
            # It may be another one than the one that was looked up.
            self._watches.add_both(name, worker)
        return info

    def _op_watch(self, name: str, workers: list[str], life: str) -> None:
        """Tell a member of the ends of others, also of those since it has joined.

        Args:
            name: the member.
            workers: the others.
            life: the process that it depends on; "" if that is whichever has the name.
        """
        for worker in workers:
            if self._watches.add(name, worker) and self._has_missed(name, worker, life):
                self._tell_end(worker, [name])

    def _op_watch_all(self, name: str) -> None:
        self._watches.add_all(name)

    def _op_responds(self, name: str, worker: str, life: str) -> Any:
        """Return whether a process lives: it has answered, or it is known to be gone.

        Whoever asks has been told of its end before it gets the answer False.
        """
        info = self.state.workers.get(worker) or self.state.others.get(worker)
        if worker not in self._members or (info is not None and info.life != life):
            if worker not in self._members and self._has_missed(name, worker, life):
                self._tell_end(worker, [name])
            return False
        self._watches.add(name, worker)
        inquiry = self._inquiries.ask([worker])
        self._send(self._members[worker], pickle.dumps(("event", "ping", (inquiry.number, None))))

        def attempt() -> Any:
            if not inquiry.complete:
                return Wait(("inquiry", inquiry.number))
            self._inquiries.end(inquiry.number)
            return worker in inquiry.answers

        return _Attempt(attempt, lambda: self._inquiries.end(inquiry.number))

    def _op_group(self, name: str, group: str) -> _Attempt:
        return _Attempt(lambda: self.state.group(group))

    def _op_group_size(self, name: str, group: str) -> _Attempt:
        return _Attempt(lambda: self.state.group_size(group))

    def _op_groups(self, name: str) -> list[str]:
        return self.state.known_groups()

    def _op_port(self, name: str, node_rank: int, port: int) -> bool:
        return self.state.lock_port(name, node_rank, port)

    def _op_acquire(self, name: str, keys: list[str]) -> _Attempt:
        return _Attempt(
            lambda: self.state.acquire(name, keys),
            lambda: self.state.locks.leave_queue(name, keys),
        )

    def _op_release(self, name: str, keys: list[str]) -> None:
        self.state.locks.release(name, keys)

    def _op_holders(self, name: str, keys: list[str]) -> list[str]:
        return self.state.locks.holders(keys)

    def _op_take(self, name: str, key: str, wait: bool = True) -> Any:
        if not wait:
            return self.state.values.get(key)
        return _Attempt(lambda: self.state.take(key))

    def _op_put_once(self, name: str, key: str, value: Any) -> Any:
        return self.state.put_once(key, value)

    def _op_replace(self, name: str, key: str, old: Any, new: Any) -> Any:
        return self.state.replace(key, old, new)

    def _op_raised(self, name: str, report: Raised) -> None:
        self.state.raised.append(report)

    def _op_expect_exit(self, name: str, names: list[str]) -> None:
        self._leaving.update(n for n in names if n in self._members)
        for gone in names:
            if gone not in self._members:
                self.state.left(gone)

    def _op_gone(self, name: str, names: list[str]) -> _Attempt:
        open_names = list(names)

        def attempt() -> Any:
            while open_names:
                if open_names[-1] in self._members:
                    return Wait(("member", open_names[-1]))
                open_names.pop()
                if not open_names:
                    # One that was started anew meanwhile is there again.
                    open_names.extend(n for n in names if n in self._members)
            return True

        return _Attempt(attempt)

    def _op_tell(self, name: str, event: str, payload: Any, names: list[str]) -> None:
        data = pickle.dumps(("event", event, (_NOBODY, payload)))
        for target in names:
            if target in self._members:
                self._send(self._members[target], data)

    def _op_service(self, name: str, service: str, kwargs: dict[str, Any]) -> _Attempt:
        """Run something that the driver offers, outside of the I/O thread."""
        outcome: list[Any] = []
        topic = ("service", next(self._numbers))

        def run() -> None:
            try:
                outcome.append((self.services[service](**kwargs), None))
            except Exception as error:
                outcome.append((None, error))
            with self._lock:
                self.state.changes.append(topic)
                self._settle()

        def attempt() -> Any:
            if not outcome:
                return Wait(topic)
            value, error = outcome[0]
            if error is not None:
                raise error
            return value

        threading.Thread(target=run, name=f"rlinf-{service}", daemon=True).start()
        return _Attempt(attempt)

    def _op_deaths(self, name: str) -> list[Death]:
        return list(self.state.deaths)

    def deaths(self) -> list[Death]:
        """Return all deaths in their order."""
        with self._lock:
            return list(self.state.deaths)

    def deaths_of(self, name: str) -> list[Death]:
        """Return the deaths under a name in their order."""
        with self._lock:
            return self.state.deaths_of(name)

    def watchers_of(self, name: str) -> list[str]:
        """Return the members that are told when a worker ends."""
        with self._lock:
            return [member for member in self._watches.watchers_of(name) if member in self._members]

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
            return bool(self.state.deaths_of(name)) and not is_gone(info)

        with self._changed:
            interruptible(self._changed.wait_for, known, seconds)


_NOBODY = -1


class _Attempt(NamedTuple):
    """A request that may have to wait.

    Attributes:
        attempt: tries; returns a `Wait` to go on waiting.
        undo: called if the request is given up.
    """

    attempt: Callable[[], Any]
    undo: Callable[[], None] | None = None
