"""The data endpoint of a process: one listening place, one connection to each peer, all traffic."""

from __future__ import annotations

import pickle
import secrets
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.address import WorkerInfo, life_at
from rlinf.scheduler.collective.device_links import DeviceLinks
from rlinf.scheduler.collective.peer_connections import PeerConnections
from rlinf.scheduler.collective.peer_losses import PeerLeft, PeerLoss, PeerLosses, explain
from rlinf.scheduler.errors import (
    ConnectionBroken,
    PeerLost,
    WaitTimeout,
    WorkerDied,
)
from rlinf.scheduler.events import Death
from rlinf.scheduler.failure.process_state import oom_kills
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.flushed import Flushed
from rlinf.scheduler.net.interrupts import shielded
from rlinf.scheduler.net.link_watch import LinkWatch
from rlinf.scheduler.net.sockets import Address, Listener, answers
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.spec import RunSpec, memory_domain

if TYPE_CHECKING:
    from rlinf.scheduler.collective.codec import Encoded
    from rlinf.scheduler.collective.link_steps import TransferSpec
    from rlinf.scheduler.collective.payload import PackedMessage, Packer, Payload, Unpacker
    from rlinf.scheduler.collective.shm import Block
    from rlinf.scheduler.collective.work import Work

Handler = Callable[[str, Connection, tuple[Any, ...], Any], None]
"""Takes (sender, connection, fields, body); one at a time, whichever thread reads the connection.

The body is a `Payload` if the message carries an encoded object, else the list of its buffers.
"""


_WARM_UP_SECONDS = 0.5


class Endpoint:
    """Sends to and receives from any process of the run.

    Args:
        name: name of this process.
        run: what all processes share.
        node_rank: node of this process.
        comm_ips: addresses at which it takes data from other nodes.
        registry: the lifeline; its I/O thread serves the endpoint, too.
        visible: cluster-wide ids of the accelerators that this process sees, by the index that it
            has for each: its own if it is isolated, otherwise all of its node.
    """

    def __init__(
        self,
        name: str,
        run: RunSpec,
        node_rank: int,
        comm_ips: list[str],
        registry: RegistryClient,
        visible: list[int] | None = None,
    ):
        self.name = name
        self.run = run
        self.node_rank = node_rank
        self.node_ip = comm_ips[0]
        self.domain = memory_domain()
        self.visible = list(visible or [])
        self._oom_kills = oom_kills()
        self._registry = registry
        self._loop = registry.loop
        self._handlers: dict[str, Handler] = {"free": self._on_free}
        self._watchers: list[Callable[[str, BaseException], None]] = []
        self._closing = False
        # To make packer and unpacker; the former may have to wait for other processes of the node.
        self._packer_lock = threading.Lock()
        self._unpacker_lock = threading.Lock()
        # Connections of which a message could not be read: nothing after it is handed out.
        self._unreadable: weakref.WeakSet[Connection] = weakref.WeakSet()
        # Handlers and watchers run one at a time: in the I/O thread, or in one that waits.
        self._serial = threading.RLock()
        self._helpers = ThreadPoolExecutor(16, thread_name_prefix="rlinf-send")
        args = (run.secret, self._on_message, self._on_close, self._on_connect)
        self._listeners = [Listener(self._loop, ("unix", f"rlinf-{secrets.token_hex(8)}"), *args)]
        self._life = life_at(self.addresses)
        self._losses = PeerLosses(registry, self._break)
        self._watch = LinkWatch(run.timeout("reconnect") or 10.0, _close_all, self._answers)
        self.connections = PeerConnections(
            name,
            self._life,
            lambda: self.addresses,
            run,
            node_rank,
            registry,
            self._losses,
            self._watch,
            self._loop,
            self._on_message,
            self._on_close,
        )
        if run.num_nodes > 1:
            self._listeners += [
                Listener(self._loop, ("tcp", ip, 0), *args, ports=run.ports, tls=run.tls)
                for ip in comm_ips
            ]
        self.links = DeviceLinks(self)
        registry.on_inquiry("broken", self._on_broken)
        registry.on_death(self._on_death)
        registry.on_leave(self._on_leave)

    # NumPy and what stands on it is loaded when data first moves, not when the process starts.

    @cached_property
    def packer(self) -> Packer:
        """The sending side."""
        from rlinf.scheduler.collective.payload import Packer

        # Two threads may need it at once, and there must be one.
        with self._packer_lock:
            if "packer" not in self.__dict__:
                self.__dict__["packer"] = Packer()
            return self.__dict__["packer"]

    @cached_property
    def _unpacker(self) -> Unpacker:
        from rlinf.scheduler.collective.payload import Unpacker

        # The first message may come while `warm_up` is at it.
        with self._unpacker_lock:
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
        """Call `watcher(peer, error)` when a peer has ended and all that it sent was handed out.

        No handler runs meanwhile.
        """
        self._watchers.append(watcher)

    def locate(self, peers: Iterable[str]) -> None:
        """Find out where peers are, all at the same time; not for the I/O thread.

        Raises:
            PeerLost: one has ended.
            WaitTimeout: one did not appear within `cluster.timeouts.recv`.
        """
        unknown = [peer for peer in peers if self.connections.info(peer) is None]
        for _ in self._helpers.map(self.connections.locate, unknown):
            pass

    def watch(self, *peers: str, life: str = "") -> None:
        """Be told of the ends of peers, also of those that are never reached."""
        self._registry.watch(*peers, life=life)

    def later(self, function: Callable[..., Any], *args: Any) -> None:
        """Run something that may block outside of the I/O thread."""
        self._helpers.submit(_loudly, function, *args)

    @shielded
    def close(self) -> None:
        """Stop taking data."""
        self._closing = True
        self._watch.stop()
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
        info = self.connections.info(peer)
        return (
            info is not None
            and info.cluster_node_rank == self.node_rank
            and info.memory_domain == self.domain
        )

    def shares_gpu(self, peer: str) -> bool:
        """Return whether a peer has an accelerator that this process sees."""
        return bool(self.shared_devices(peer))

    def shared_devices(self, peer: str) -> frozenset[int]:
        """Return the indices here of the accelerators that this process sees and a peer has."""
        info = self.connections.info(peer)
        theirs = set(info.available_accelerators) if info is not None else set()
        return frozenset(i for i, device in enumerate(self.visible) if device in theirs)

    def info(self, peer: str) -> WorkerInfo | None:
        """Return what the registry says of a peer that has been reached before."""
        return self.connections.info(peer)

    def node_of(self, peer: str) -> int:
        """Node of a peer that has been reached before."""
        info = self.connections.info(peer)
        assert info is not None, f"{peer} has not been reached"
        return info.cluster_node_rank

    def encode_for(
        self, peer: str, obj: Any, copy: bool = True
    ) -> tuple[Encoded, list[int | Work]]:
        """Encode an object for one peer, and say what must be done before it may change.

        See `Packer.encode`; transfers by link come after what that names.
        """
        tensors = self.links.collect((peer,), copy)
        links = tensors.taker(peer) if tensors.route(peer) else None
        encoded, tokens = self.packer.encode(obj, peer, self.shared_devices(peer), copy, links)
        tensors.close()
        return encoded, [*tokens, *tensors.left]

    def pack_for(self, peer: str, encoded: Encoded, timeout: float = 60.0) -> PackedMessage:
        """Prepare an object that `encode_for` has encoded; the message must follow."""
        packed = self.packer.pack(encoded, (peer,), self.shares_memory(peer), timeout)
        taken = getattr(encoded, "taken", None)
        if taken is not None:
            # Last: a link waits for every transfer that it was told of.
            self.links.dispatch(taken.tensors)
            packed.transfers = taken.tensors.transfers(peer)
        return packed

    def payload(
        self,
        connection: Connection,
        parts: list[memoryview],
        transfers: tuple[TransferSpec, ...] = (),
    ) -> Payload:
        """Return the object whose parts have come on a connection, not yet decoded."""
        sender, nbytes = connection.identity["name"], sum(map(len, parts))
        return self._unpacker.take(connection, sender, parts, None, nbytes, transfers)

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
            connection = self.connections.to(peer)
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
        # What is unpickled is in the first of them; the others are the bytes of tensors and arrays.
        self._write(connection, meta, packed.buffers, flushed, covered=1)

    def answer_raw(
        self,
        connection: Connection,
        kind: str,
        fields: tuple[Any, ...],
        buffers: Any = (),
        flushed: Flushed | None = None,
        covered: int | None = None,
    ) -> None:
        """Send a message whose buffers are not an encoded object, or none at all."""
        self._write(connection, pickle.dumps((kind, fields)), buffers, flushed, covered)

    def submit(
        self,
        connection: Connection,
        kind: str,
        fields: tuple[Any, ...],
        buffers: Any = (),
        covered: int | None = None,
    ) -> None:
        """Like `answer_raw`, but waits for the reason of a failure; not for the I/O thread."""
        try:
            self.answer_raw(connection, kind, fields, buffers, covered=covered)
        except ConnectionBroken as error:
            raise self._cause(connection, error) from None

    def _write(
        self,
        connection: Connection,
        meta: bytes,
        buffers: Any,
        flushed: Flushed | None,
        covered: int | None,
    ) -> None:
        try:
            connection.send(meta, buffers, flushed, covered)
        except ConnectionError as error:
            peer = connection.identity["name"]
            broken = ConnectionBroken(self.name, peer=peer, reason=str(error))
            raise self.gone(peer) or broken from error

    def post_soon(self, peer: str, kind: str, fields: tuple[Any, ...]) -> None:
        """Send a small message from any thread; one to a peer that has ended is dropped."""
        connection = self.connections.outgoing(peer)
        if connection is not None:
            self._drop_if_ended(connection, kind, fields)
        else:
            self.later(lambda: self._drop_if_ended(self.connections.to(peer), kind, fields))

    def _drop_if_ended(self, connection: Connection, kind: str, fields: tuple[Any, ...]) -> None:
        try:
            self.answer(connection, kind, fields)
        except PeerLost:
            # Whoever depends on the peer is told by its end; there is nothing to add here.
            pass

    def _cause(self, connection: Connection, error: ConnectionBroken) -> BaseException:
        """Return why sending failed, once that is known; not for the I/O thread."""
        peer = connection.identity["name"]
        self.connections.await_end(connection)
        self._losses.settle(peer)
        return self.gone(peer) or error

    # -- receiving (one message at a time) ------------------------------------------------------

    def _answers(self, connection: Connection, on_reached: Callable[[], None]) -> bool:
        """Find out by a new connection whether the peer of a silent one can be reached."""
        address = self.connections.listener_of(connection)
        return address is not None and answers(
            address, self.run.secret, self.name, self.run.tls, on_reached
        )

    def _on_connect(self, connection: Connection) -> None:
        self._watch.add(connection)
        lost = self.connections.admit(connection)
        if lost is not None:
            peer, life = connection.identity["name"], connection.identity.get("life", "")
            self._break(peer, life, lost, confirmed=True)

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
        self.connections.remove(connection)
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
        connections = self.connections.of(peer)
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
        connections = self.connections.of(peer)
        if not lives:
            self.connections.forget(peer, end.life)
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
        error = self.gone(peer)
        if error is not None and not self.connections.of(peer):
            with self._serial:
                for watcher in list(self._watchers):
                    watcher(peer, error)

    def when_lost(
        self, connection: Connection, reason: str, callback: Callable[[BaseException], None]
    ) -> None:
        """Call `callback(error)` when it is known why a message was lost with its connection."""
        peer, life = (connection.identity.get(key, "") for key in ("name", "life"))
        self._losses.when_known(peer, life, reason, callback)

    def ended(self, peer: str, life: str | None = None) -> BaseException | None:
        """Return why a peer cannot be reached; None while it can or still has data on the way.

        Args:
            peer: its name.
            life: which of those that had the name, if that is known.
        """
        end = self._losses.get(peer)
        if self.connections.incoming(peer) or end is None or life not in (None, end.life):
            return None
        return end.error

    def gone(self, peer: str) -> BaseException | None:
        """Like `ended`, also while data of the peer is still on the way."""
        return self._losses.error(peer)

    def lost(self, peer: str) -> BaseException | None:
        """Like `ended`, but None for a peer that was started anew; not for the I/O thread.

        Whoever asks is told when the peer ends later.
        """
        self.watch(peer)
        error = self.ended(peer)
        if error is None:
            return None
        info = self._registry.ask("lives", worker=peer)
        if info is None:
            # It may have died since, after the connection broke.
            return self.ended(peer) or error
        self._losses.revive(peer, info.life)
        return self.ended(peer)


def _close_all(connections: list[Connection], reason: str) -> None:
    for connection in connections:
        connection.close(reason)


def _loudly(function: Callable[..., Any], *args: Any) -> None:
    """Run a background task; what it raises is shown, because nobody waits for it."""
    try:
        function(*args)
    except (PeerLost, WaitTimeout):
        # Whoever depends on the peer is told by its end.
        pass
    except Exception:
        traceback.print_exc()
