"""The data endpoint of a process: one listening place, one connection to each peer, all traffic."""

from __future__ import annotations

import pickle
import secrets
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.address import WorkerInfo, life_at
from rlinf.scheduler.collective.links import DeviceLinks
from rlinf.scheduler.collective.peer_losses import PeerLeft, PeerLoss, PeerLosses, explain
from rlinf.scheduler.errors import (
    ConnectionBroken,
    PeerLost,
    SchedulerError,
    WaitTimeout,
    WorkerDied,
)
from rlinf.scheduler.events import Death
from rlinf.scheduler.failure.process_state import oom_kills
from rlinf.scheduler.net import forks
from rlinf.scheduler.net.connection import Connection, Flushed, Numbers
from rlinf.scheduler.net.interrupts import interruptible, shielded
from rlinf.scheduler.net.sockets import Address, Listener, connect
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.spec import RunSpec, memory_domain

if TYPE_CHECKING:
    from rlinf.scheduler.collective.codec import Encoded
    from rlinf.scheduler.collective.payload import PackedMessage, Packer, Unpacker
    from rlinf.scheduler.collective.shm import Block
    from rlinf.scheduler.collective.work import Work

Handler = Callable[[str, Connection, tuple[Any, ...], Any], None]
"""Takes (sender, connection, fields, body); one at a time, whichever thread reads the connection.

The body is a `Payload` if the message carries an encoded object, else the list of its buffers.
"""


_WARM_UP_SECONDS = 0.5
_RETRY_SECONDS = 0.05


class Endpoint:
    """Sends to and receives from any process of the run.

    Args:
        name: name of this process.
        run: what all processes share.
        node_rank: node of this process.
        node_ip: address of that node.
        registry: the lifeline; its I/O thread serves the endpoint, too.
        visible: cluster-wide ids of the accelerators that this process sees, by the index that it
            has for each: its own if it is isolated, otherwise all of its node.
    """

    def __init__(
        self,
        name: str,
        run: RunSpec,
        node_rank: int,
        node_ip: str,
        registry: RegistryClient,
        visible: list[int] | None = None,
    ):
        self.name = name
        self.run = run
        self.node_rank = node_rank
        self.node_ip = node_ip
        self.domain = memory_domain()
        self.visible = list(visible or [])
        self._oom_kills = oom_kills()
        self._registry = registry
        self._loop = registry.loop
        self._handlers: dict[str, Handler] = {"free": self._on_free}
        self._watchers: list[Callable[[str, BaseException], None]] = []
        self._out: dict[str, Connection] = {}
        self._in: dict[str, list[Connection]] = {}
        self._infos: dict[str, WorkerInfo] = {}
        self._connecting: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        # By peer, its life and whether this process has made the connection.
        self._numbers: dict[tuple[str, str, bool], Numbers] = {}
        self._closing = False
        self._forked: str | None = None
        # Only to make the packer, which may have to wait for other processes of the node.
        self._packer_lock = threading.Lock()
        # Connections of which a message could not be read: nothing after it is handed out.
        self._unreadable: weakref.WeakSet[Connection] = weakref.WeakSet()
        # Handlers and watchers run one at a time: in the I/O thread, or in one that waits.
        self._serial = threading.RLock()
        self._helpers = ThreadPoolExecutor(16, thread_name_prefix="rlinf-send")
        args = (run.secret, self._on_message, self._on_close, self._on_connect)
        self._listeners = [Listener(self._loop, ("unix", f"rlinf-{secrets.token_hex(8)}"), *args)]
        self._life = life_at(self.addresses)
        if run.num_nodes > 1:
            self._listeners.append(Listener(self._loop, ("tcp", node_ip, 0), *args))
        self.links = DeviceLinks(self)
        self._losses = PeerLosses(registry, self._break)
        registry.on_inquiry("broken", self._on_broken)
        registry.on_death(self._on_death)
        registry.on_leave(self._on_leave)
        forks.in_child(self)

    # NumPy and what stands on it is loaded when data first moves, not when the process starts.

    @cached_property
    def packer(self) -> Packer:
        """The sending side."""
        from rlinf.scheduler.collective.payload import Packer

        # Two threads may need it at once, and there must be one.
        with self._packer_lock:
            if "packer" not in self.__dict__:
                self.__dict__["packer"] = Packer(self.links)
            return self.__dict__["packer"]

    @cached_property
    def _unpacker(self) -> Unpacker:
        from rlinf.scheduler.collective.payload import Unpacker

        # The first message may come while `warm_up` is at it.
        with self._lock:
            if "_unpacker" not in self.__dict__:
                unpacker = Unpacker(self._loop, self._send_release, self.links)
                self.__dict__["_unpacker"] = unpacker
            return self.__dict__["_unpacker"]

    def warm_up(self) -> None:
        """Load what moving data needs, soon, so that the first message is quick.

        Not at once: whoever has launched this process is about to call it.
        """
        timer = threading.Timer(_WARM_UP_SECONDS, lambda: (self._unpacker, self.packer))
        timer.daemon = True
        timer.start()

    @property
    def addresses(self) -> list[Address]:
        """Where this process takes data."""
        return [listener.address for listener in self._listeners]

    def on(self, kind: str, handler: Handler) -> None:
        """Handle messages of a kind."""
        self._handlers[kind] = handler

    def on_end(self, watcher: Callable[[str, BaseException], None]) -> None:
        """Calls `watcher(peer, error)` when a peer has ended and all that it sent was handed out.

        No handler runs meanwhile.
        """
        self._watchers.append(watcher)

    def check_process(self) -> None:
        """Check that this is the process that the endpoint belongs to.

        Raises:
            SchedulerError: this is a forked child.
        """
        if self._forked is not None:
            raise SchedulerError(f"{self.name}: {self._forked}")

    def close_in_child(self, reason: str) -> None:
        """Refuse all use in a forked child."""
        self._forked = reason

    def later(self, function: Callable[..., Any], *args: Any) -> None:
        """Runs something that may block outside of the I/O thread."""
        self._helpers.submit(_loudly, function, *args)

    @shielded
    def close(self) -> None:
        """Stop taking data."""
        self._closing = True
        for listener in self._listeners:
            self._loop.call_soon(listener.close)
        self._helpers.shutdown(wait=False, cancel_futures=True)
        self.links.close()
        # One that is just being made is waited for.
        with self._packer_lock:
            packer = self.__dict__.get("packer")
        if packer is not None:
            packer.pool.close()

    # -- sending ------------------------------------------------------------------------------

    def shares_memory(self, peer: str) -> bool:
        """Return whether a peer can read this process's shared memory."""
        info = self._infos.get(peer)
        return (
            info is not None
            and info.cluster_node_rank == self.node_rank
            and info.memory_domain == self.domain
        )

    def shares_gpu(self, peer: str) -> bool:
        """Return whether a peer has an accelerator that this process sees."""
        return bool(self.shared_devices(peer))

    def shared_devices(self, peer: str) -> frozenset[int]:
        """Indices here of the accelerators that this process sees and a peer has."""
        info = self._infos.get(peer)
        theirs = set(info.available_accelerators) if info is not None else set()
        return frozenset(i for i, device in enumerate(self.visible) if device in theirs)

    def info(self, peer: str) -> WorkerInfo | None:
        """Return what the registry says of a peer that has been reached before."""
        return self._infos.get(peer)

    def node_of(self, peer: str) -> int:
        """Node of a peer that has been reached before."""
        return self._infos[peer].cluster_node_rank

    def encode_for(
        self, peer: str, obj: Any, copy: bool = True
    ) -> tuple[Encoded, list[int | Work]]:
        """Encode an object for one peer; see `Packer.encode`."""
        return self.packer.encode(obj, peer, self.shared_devices(peer), copy)

    def pack_for(self, peer: str, encoded: Encoded, timeout: float = 60.0) -> PackedMessage:
        """Prepare an encoded object for one peer."""
        return self.packer.pack(encoded, (peer,), self.shares_memory(peer), timeout)

    def read_own(self, block: Block) -> list[memoryview]:
        """Return the buffers of a block of this process, for a peer that shares no memory."""
        return self._unpacker.read(block.descriptor)

    def post(
        self,
        peer: str,
        kind: str,
        fields: tuple[Any, ...],
        packed: PackedMessage | None = None,
        flushed: Flushed | None = None,
    ) -> Connection:
        """Send a message; connects first if need be, so not for the I/O thread.

        Returns:
            The connection that it was sent on.

        Raises:
            PeerLost: the peer has ended, or the connection to it broke.
        """
        try:
            connection = self.connection_to(peer)
            try:
                self.answer(connection, kind, fields, packed, flushed)
            except ConnectionBroken as error:
                raise self._cause(connection, error) from None
        except BaseException:
            self.discard(packed, (peer,))
            raise
        if isinstance(self.gone(peer), WorkerDied):
            # Its end may have been dealt with before the block was written for it. One that lives
            # reads the block, also after a break.
            self.discard(packed, (peer,))
        return connection

    def discard(self, packed: PackedMessage | None, readers: Iterable[str]) -> None:
        """Release the shared memory of a message for readers that do not get it."""
        if packed is not None and packed.descriptor is not None:
            for reader in readers:
                self.packer.pool.release(packed.descriptor.block, reader)

    def answer(
        self,
        connection: Connection,
        kind: str,
        fields: tuple[Any, ...],
        packed: PackedMessage | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        """Send a message on a connection that is there.

        Raises:
            PeerLost: the peer has ended, or the connection to it broke.
        """
        if packed is None:
            self.answer_raw(connection, kind, fields, (), flushed)
            return
        place = (packed.descriptor, packed.nbytes)
        if packed.transfers:
            place += (packed.transfers,)
        meta = pickle.dumps((kind, fields, *place))
        self._write(connection, meta, packed.buffers, flushed)

    def answer_raw(
        self,
        connection: Connection,
        kind: str,
        fields: tuple[Any, ...],
        buffers: Any = (),
        flushed: Flushed | None = None,
    ) -> None:
        """Send a message whose buffers are not an encoded object, or none at all."""
        self._write(connection, pickle.dumps((kind, fields)), buffers, flushed)

    def submit(
        self, connection: Connection, kind: str, fields: tuple[Any, ...], buffers: Any = ()
    ) -> None:
        """Like `answer_raw`, but waits for the reason of a failure; not for the I/O thread."""
        try:
            self.answer_raw(connection, kind, fields, buffers)
        except ConnectionBroken as error:
            raise self._cause(connection, error) from None

    def _write(
        self, connection: Connection, meta: bytes, buffers: Any, flushed: Flushed | None
    ) -> None:
        try:
            connection.send(meta, buffers, flushed)
        except ConnectionError as error:
            peer = connection.identity["name"]
            broken = ConnectionBroken(self.name, peer=peer, reason=str(error))
            raise self.gone(peer) or broken from error

    def _why(self, peer: str, error: BaseException) -> BaseException:
        """Return what to say of a peer that the registry says has ended."""
        return self.gone(peer) or WorkerDied(peer, cause=str(error))

    def post_soon(self, peer: str, kind: str, fields: tuple[Any, ...]) -> None:
        """Send a small message from any thread; one to a peer that has ended is dropped."""
        connection = self._out.get(peer)
        if connection is not None and connection.closed is None:
            self._drop_if_ended(connection, kind, fields)
        else:
            self.later(lambda: self._drop_if_ended(self.connection_to(peer), kind, fields))

    def _drop_if_ended(self, connection: Connection, kind: str, fields: tuple[Any, ...]) -> None:
        try:
            self.answer(connection, kind, fields)
        except PeerLost:
            # Whoever depends on the peer is told by its end; there is nothing to add here.
            pass

    def connection_to(self, peer: str) -> Connection:
        """Return the connection to a peer; make it, and wait for the peer, at first use.

        Raises:
            PeerLost: the peer has ended, or the connection to it broke.
            WaitTimeout: the peer did not appear within `cluster.timeouts.recv`.
            SchedulerError: this is a forked child.
        """
        self.check_process()
        while True:
            connection = self._out.get(peer)
            if connection is not None and connection.closed is None:
                error = self.gone(peer)
                if isinstance(error, ConnectionBroken):
                    raise error
                return connection
            if connection is not None:
                self._reported(connection)
            self._losses.settle(peer)
            with self._lock:
                others = self._connecting.get(peer)
                if others is None:
                    done = self._connecting[peer] = threading.Event()
            if others is not None:
                interruptible(others.wait)
                continue
            try:
                return self._connect(peer)
            finally:
                with self._lock:
                    del self._connecting[peer]
                done.set()

    def _cause(self, connection: Connection, error: ConnectionBroken) -> BaseException:
        """Return why sending failed, once that is known; not for the I/O thread."""
        peer = connection.identity["name"]
        self._reported(connection)
        self._losses.settle(peer)
        return self.gone(peer) or error

    def _reported(self, connection: Connection) -> None:
        """Wait until the end of a connection has been dealt with; not for the I/O thread."""
        limit = self.run.timeout("recv")
        if not interruptible(connection.over.wait, limit):
            what = f"the end of a connection to {connection.identity['name']} to be dealt with"
            raise WaitTimeout(what, waiter=self.name, seconds=limit)

    def _connect(self, peer: str) -> Connection:
        limit = self.run.timeout("recv")
        deadline = None if limit is None else time.monotonic() + limit
        what = f"{peer} to register, in order to send to it"
        try:
            info = self._registry.ask("lookup", worker=peer, timeout=limit, what=what)
        except ConnectionError as error:
            raise self._why(peer, error) from error
        while True:
            near = info.cluster_node_rank == self.node_rank
            address = next((a for a in info.endpoints if near or a[0] == "tcp"), None)
            if address is None:
                raise WorkerDied(peer, cause=f"it has no address for node {self.node_rank}")
            with self._lock:
                self._infos[peer] = info
            life = info.life
            self._losses.revive(peer, life)
            error = self.gone(peer)
            if error is not None:
                raise error
            numbers = self._numbers_of(peer, life, outgoing=True)
            try:
                return connect(
                    self._loop,
                    address,
                    self.run.secret,
                    {"name": self.name, "life": self._life, "sent": numbers.sent},
                    self._on_message,
                    self._on_close,
                    prepare=partial(self._on_connected, peer, life, numbers),
                )
            except OSError as failure:
                info = self._look_again(peer, failure, deadline)

    def _look_again(self, peer: str, failure: OSError, deadline: float | None) -> WorkerInfo:
        """Return where a peer is that could not be reached: it may be slow, or started anew."""
        info = self._registry.ask("lives", worker=peer)
        if info is None:
            raise self._why(peer, failure) from failure
        if deadline is not None and time.monotonic() > deadline:
            raise WaitTimeout(f"{peer} to take a connection ({failure})", waiter=self.name)
        interruptible(time.sleep, _RETRY_SECONDS)
        return info

    def _on_connected(self, peer: str, life: str, numbers: Numbers, connection: Connection) -> None:
        # Before anything is received: its end must find it here.
        connection.identity |= {"name": peer, "life": life}
        connection.numbers = numbers
        with self._lock:
            self._out[peer] = connection

    def _numbers_of(self, peer: str, life: str, outgoing: bool) -> Numbers:
        """Return the numbers of the messages on connections that one of the two has made."""
        with self._lock:
            return self._numbers.setdefault((peer, life, outgoing), Numbers())

    # -- receiving (one message at a time) ------------------------------------------------------

    def incoming(self, peer: str) -> Connection | None:
        """Return the connection on which a peer sends to this process.

        None if it has not made one.
        """
        connections = self._in.get(peer)
        return connections[-1] if connections else None

    def _on_connect(self, connection: Connection) -> None:
        peer, life = connection.identity["name"], connection.identity.get("life", "")
        numbers = connection.numbers = self._numbers_of(peer, life, outgoing=False)
        with self._lock:
            self._in.setdefault(peer, []).append(connection)
        self._losses.revive(peer, life)
        first = connection.identity.get("sent", 0) + 1
        if isinstance(self.gone(peer), ConnectionBroken):
            connection.shut()
        elif first < numbers.received + 1:
            # The peer has given this one up in the handshake, and used another one since.
            connection.shut()
        elif first != numbers.received + 1:
            due = numbers.received + 1
            self._break(peer, life, f"message {first} is the next where message {due} is due", True)

    def _on_message(self, connection: Connection, meta: bytes, buffers: list[memoryview]) -> None:
        if connection in self._unreadable:
            return
        sender = connection.identity["name"]
        body: Any = buffers
        with self._serial:
            try:
                kind, fields, *place = pickle.loads(meta)
                handler = self._handlers[kind]
                if place:
                    body = self._unpacker.take(connection, sender, buffers, *place)
            except Exception as error:
                # What follows must not be taken for it.
                self._unreadable.add(connection)
                number, life = connection.numbers.received, connection.identity.get("life", "")
                reason = f"{self.name} could not read message {number}: {error!r}"
                self._break(sender, life, reason, confirmed=True)
                raise
            handler(sender, connection, fields, body)

    def _send_release(self, connection: Connection, blocks: list[int], tokens: list[int]) -> None:
        self._drop_if_ended(connection, "free", (blocks, tokens))

    def _on_free(
        self, sender: str, connection: Connection, fields: tuple[Any, ...], payload: Any
    ) -> None:
        self.packer.released(sender, *fields)

    # -- ends -----------------------------------------------------------------------------------

    def _on_close(self, connection: Connection, reason: str) -> None:
        peer, life = (connection.identity.get(key, "") for key in ("name", "life"))
        # What was never used has lost nothing: a process may have given up the handshake.
        used = connection.sent_bytes or connection.received_bytes
        if used and not self._losses.knows(peer, life) and not self._closing:
            self._losses.doubt(peer, life, reason)
        with self._lock:
            incoming = self._in.get(peer, [])
            if connection in incoming:
                incoming.remove(connection)
            if self._out.get(peer) is connection:
                del self._out[peer]
        if self.gone(peer) is not None:
            self._tell_end(peer)

    def _on_death(self, death: Death) -> None:
        error = explain(death, self.run, self.node_rank, self._oom_kills)
        self._end(death.name, PeerLoss(error, death.info.life if death.info is not None else ""))

    def _on_leave(self, name: str, info: WorkerInfo | None) -> None:
        error = PeerLeft(name, exit_code=0, cause="its group was closed")
        self._end(name, PeerLoss(error, info.life if info is not None else ""))

    def _on_broken(self, fields: tuple[str, str, str, str]) -> None:
        """A peer says, by way of the registry, that the connection to it broke (I/O thread)."""
        peer, life, mine, reason = fields
        if mine == self._life:
            self._break(peer, life, reason, confirmed=True, tell=False)

    def _break(self, peer: str, life: str, reason: str, confirmed: bool, tell: bool = True) -> None:
        """End all exchange with a peer that lives, since messages between the two are lost."""
        with self._lock:
            connections = [*self._in.get(peer, ()), *filter(None, [self._out.get(peer)])]
        others = {connection.identity.get("life", "") for connection in connections} - {life}
        error = ConnectionBroken(self.name, peer=peer, reason=reason, confirmed=confirmed)
        end = PeerLoss(error, life)
        if self._closing or others or not self._losses.record(peer, end, first=True):
            # The peer has died, or been started anew, since.
            return
        self._cut_off(peer, end)
        if tell:
            # It may see nothing of it, or only much later.
            fields = (self.name, self._life, life, reason)
            self._registry.notify("tell", event="broken", payload=fields, names=[peer])

    def _end(self, peer: str, end: PeerLoss) -> None:
        self._losses.record(peer, end)
        self._cut_off(peer, end)

    def _cut_off(self, peer: str, end: PeerLoss) -> None:
        """Let go of all that the exchange with a peer needs."""
        lives = isinstance(end.error, ConnectionBroken)
        with self._lock:
            connections = [*self._in.get(peer, ()), *filter(None, [self._out.get(peer)])]
            if not lives:
                self._infos.pop(peer, None)
                for key in [(peer, end.life, outgoing) for outgoing in (True, False)]:
                    self._numbers.pop(key, None)
        for connection in connections:
            if lives:
                connection.shut()
            else:
                connection.expire()
        if "packer" in self.__dict__:
            self.packer.reader_gone(peer, end.error, lives)
        if "_unpacker" in self.__dict__:
            self._unpacker.sender_gone(peer)
        self.links.peer_gone(peer, end.error)
        self._tell_end(peer)

    def _tell_end(self, peer: str) -> None:
        """Tell of an end once everything that the peer had sent has been read."""
        with self._lock:
            drained = not self._in.get(peer) and peer not in self._out
        error = self.gone(peer)
        if drained and error is not None:
            with self._serial:
                for watcher in list(self._watchers):
                    watcher(peer, error)

    def when_lost(
        self, connection: Connection, reason: str, callback: Callable[[BaseException], None]
    ) -> None:
        """Calls `callback(error)` when it is known why a message was lost with its connection."""
        peer, life = (connection.identity.get(key, "") for key in ("name", "life"))
        self._losses.when_known(peer, life, reason, callback)

    def ended(self, peer: str, life: str | None = None) -> BaseException | None:
        """Return why a peer cannot be reached; None while it can or still has data on the way.

        Args:
            peer: its name.
            life: which of those that had the name, if that is known.
        """
        end = self._losses.get(peer)
        if self._in.get(peer) or end is None or life not in (None, end.life):
            return None
        return end.error

    def gone(self, peer: str) -> BaseException | None:
        """Like `ended`, also while data of the peer is still on the way."""
        end = self._losses.get(peer)
        return None if end is None else end.error

    def lost(self, peer: str) -> BaseException | None:
        """Like `ended`, but None for a peer that was started anew; not for the I/O thread."""
        error = self.ended(peer)
        if error is None:
            return None
        info = self._registry.ask("lives", worker=peer)
        if info is None:
            # It may have died since, after the connection broke.
            return self.ended(peer) or error
        self._losses.revive(peer, info.life)
        return self.ended(peer)


def _loudly(function: Callable[..., Any], *args: Any) -> None:
    """Runs a background task; what it raises is shown, because nobody waits for it."""
    try:
        function(*args)
    except (PeerLost, WaitTimeout):
        # Whoever depends on the peer is told by its end.
        pass
    except Exception:
        traceback.print_exc()
