"""The data endpoint of a process: one listening place, one connection to each peer, all traffic."""

from __future__ import annotations

import pickle
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf.scheduler.collective.links import DeviceLinks
from rlinf.scheduler.errors import WaitTimeout, WorkerDied
from rlinf.scheduler.failure.autopsy import diagnose
from rlinf.scheduler.failure.blackbox import examine, oom_kills
from rlinf.scheduler.net.connection import Connection, Flushed
from rlinf.scheduler.net.doorbell import interruptible
from rlinf.scheduler.net.loop import Address, Listener, connect
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.registry.state import Death
from rlinf.scheduler.worker.address import WorkerInfo
from rlinf.scheduler.worker.spec import RunSpec, memory_domain, worker_file

if TYPE_CHECKING:
    from rlinf.scheduler.collective.codec import Encoded
    from rlinf.scheduler.collective.payload import Packer, Parcel, Unpacker
    from rlinf.scheduler.collective.shm import Block
    from rlinf.scheduler.collective.work import Work

Handler = Callable[[str, Connection, tuple[Any, ...], Any], None]
"""Takes (sender, connection, fields, body); one at a time, whichever thread reads the connection.

The body is a `Payload` if the message carries an encoded object, else the list of its buffers.
"""


_WARM_UP_SECONDS = 0.5
_RETRY_SECONDS = 0.05


class _End(NamedTuple):
    """Why a peer has ended, and which of those that had its name; "" if that is not known."""

    error: BaseException
    life: str


class PeerLeft(WorkerDied):
    """A peer has ended on purpose."""


class Endpoint:
    """Sends to and receives from any process of the run.

    Args:
        name: name of this process.
        run: what all processes share.
        node_rank: node of this process.
        node_ip: address of that node.
        registry: the lifeline; its I/O thread serves the endpoint, too.
        accelerators: cluster-wide ids of this process's accelerators.
    """

    def __init__(
        self,
        name: str,
        run: RunSpec,
        node_rank: int,
        node_ip: str,
        registry: RegistryClient,
        accelerators: list[int] | None = None,
    ):
        self.name = name
        self.run = run
        self.node_rank = node_rank
        self.node_ip = node_ip
        self.domain = memory_domain()
        self.accelerators = list(accelerators or [])
        self._oom_kills = oom_kills()
        self._registry = registry
        self._loop = registry.loop
        self._handlers: dict[str, Handler] = {"free": self._on_free}
        self._watchers: list[Callable[[str, BaseException], None]] = []
        self._out: dict[str, Connection] = {}
        self._in: dict[str, list[Connection]] = {}
        self._infos: dict[str, WorkerInfo] = {}
        self._ended: dict[str, _End] = {}
        self._connecting: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._made: tuple[Packer, Unpacker] | None = None
        # Handlers and watchers run one at a time: in the I/O thread, or in one that waits.
        self._serial = threading.RLock()
        self._helpers = ThreadPoolExecutor(16, thread_name_prefix="rlinf-send")
        args = (run.secret, self._on_message, self._on_close, self._on_connect)
        self._listeners = [Listener(self._loop, ("unix", f"rlinf-{secrets.token_hex(8)}"), *args)]
        self._identity = {"name": name, "life": _life_at(self.addresses)}
        if run.num_nodes > 1:
            self._listeners.append(Listener(self._loop, ("tcp", node_ip, 0), *args))
        self.links = DeviceLinks(self)
        registry.on_death(self._on_death)
        registry.on_leave(self._on_leave)

    # NumPy and what stands on it is loaded when data first moves, not when the process starts.

    @cached_property
    def packer(self) -> Packer:
        """The sending side."""
        return self._tools[0]

    @cached_property
    def _unpacker(self) -> Unpacker:
        return self._tools[1]

    @property
    def _tools(self) -> tuple[Packer, Unpacker]:
        from rlinf.scheduler.collective.payload import Packer, Unpacker

        # The first message may come while `warm_up` is at it; there must be one of each.
        with self._lock:
            if self._made is None:
                unpacker = Unpacker(self._loop, self._send_release, self.links)
                self._made = Packer(self.links), unpacker
            return self._made

    def warm_up(self) -> None:
        """Loads what moving data needs, soon, so that the first message is quick.

        Not at once: whoever has launched this process is about to call it.
        """
        timer = threading.Timer(_WARM_UP_SECONDS, lambda: (self.packer, self._unpacker))
        timer.daemon = True
        timer.start()

    @property
    def addresses(self) -> list[Address]:
        """Where this process takes data."""
        return [listener.address for listener in self._listeners]

    def on(self, kind: str, handler: Handler) -> None:
        """Handles messages of a kind."""
        self._handlers[kind] = handler

    def on_end(self, watcher: Callable[[str, BaseException], None]) -> None:
        """Calls `watcher(peer, error)` when a peer has ended and all that it sent was handed out.

        No handler runs meanwhile.
        """
        self._watchers.append(watcher)

    def later(self, function: Callable[..., Any], *args: Any) -> None:
        """Runs something that may block outside of the I/O thread."""
        self._helpers.submit(_loudly, function, *args)

    def close(self) -> None:
        """Stops taking data."""
        for listener in self._listeners:
            self._loop.call_soon(listener.close)
        self._helpers.shutdown(wait=False, cancel_futures=True)
        self.links.close()
        if "packer" in self.__dict__:
            self.packer.pool.close()

    # -- sending ------------------------------------------------------------------------------

    def shares_memory(self, peer: str) -> bool:
        """Whether a peer can read this process's shared memory."""
        info = self._infos.get(peer)
        return (
            info is not None
            and info.cluster_node_rank == self.node_rank
            and info.memory_domain == self.domain
        )

    def shares_gpu(self, peer: str) -> bool:
        """Whether a peer has an accelerator in common with this process."""
        return bool(self.shared_devices(peer))

    def shared_devices(self, peer: str) -> frozenset[int]:
        """Indices, as this process sees them, of the accelerators that a peer has, too."""
        info = self._infos.get(peer)
        theirs = set(info.available_accelerators) if info is not None else set()
        return frozenset(i for i, device in enumerate(self.accelerators) if device in theirs)

    def info(self, peer: str) -> WorkerInfo | None:
        """What the registry says of a peer that has been reached before."""
        return self._infos.get(peer)

    def node_of(self, peer: str) -> int:
        """Node of a peer that has been reached before."""
        return self._infos[peer].cluster_node_rank

    def encode_for(
        self, peer: str, obj: Any, copy: bool = True
    ) -> tuple[Encoded, list[int | Work]]:
        """Encodes an object for one peer; see `Packer.encode`."""
        return self.packer.encode(obj, peer, self.shared_devices(peer), copy)

    def parcel_for(self, peer: str, encoded: Encoded, timeout: float = 60.0) -> Parcel:
        """Prepares an encoded object for one peer."""
        return self.packer.parcel(encoded, (peer,), self.shares_memory(peer), timeout)

    def read_own(self, block: Block) -> list[memoryview]:
        """The buffers of a block of this process, to send them where memory cannot be shared."""
        return self._unpacker.read(block.descriptor)

    def post(
        self,
        peer: str,
        kind: str,
        fields: tuple[Any, ...],
        parcel: Parcel | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        """Sends a message; connects first if need be, so not for the I/O thread.

        Raises:
            WorkerDied: the peer has ended.
        """
        self.answer(self.connection_to(peer), kind, fields, parcel, flushed)

    def answer(
        self,
        connection: Connection,
        kind: str,
        fields: tuple[Any, ...],
        parcel: Parcel | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        """Sends a message on a connection that is there.

        Raises:
            WorkerDied: the peer has ended.
        """
        if parcel is None:
            self.answer_raw(connection, kind, fields, (), flushed)
            return
        place = (parcel.descriptor, parcel.nbytes)
        if parcel.shipments:
            place += (parcel.shipments,)
        meta = pickle.dumps((kind, fields, *place))
        self._write(connection, meta, parcel.buffers, flushed)

    def answer_raw(
        self,
        connection: Connection,
        kind: str,
        fields: tuple[Any, ...],
        buffers: Any = (),
        flushed: Flushed | None = None,
    ) -> None:
        """Sends a message whose buffers are not an encoded object, or none at all."""
        self._write(connection, pickle.dumps((kind, fields)), buffers, flushed)

    def _write(
        self, connection: Connection, meta: bytes, buffers: Any, flushed: Flushed | None
    ) -> None:
        try:
            connection.send(meta, buffers, flushed)
        except ConnectionError as error:
            raise self._why(connection.identity["name"], error) from error

    def _why(self, peer: str, error: BaseException) -> BaseException:
        """What to say of a peer that cannot be reached because it has ended."""
        return self.gone(peer) or WorkerDied(peer, cause=str(error))

    def post_soon(self, peer: str, kind: str, fields: tuple[Any, ...]) -> None:
        """Sends a small message from any thread; one to a peer that has ended is dropped."""
        connection = self._out.get(peer)
        if connection is not None and connection.closed is None:
            self._drop_if_ended(connection, kind, fields)
        else:
            self.later(lambda: self._drop_if_ended(self.connection_to(peer), kind, fields))

    def _drop_if_ended(self, connection: Connection, kind: str, fields: tuple[Any, ...]) -> None:
        try:
            self.answer(connection, kind, fields)
        except WorkerDied:
            # Whoever depends on the peer is told by its end; there is nothing to add here.
            pass

    def connection_to(self, peer: str, timeout: float | None = None) -> Connection:
        """The connection to a peer, made at first use; waits for a peer that has not registered.

        Raises:
            WorkerDied: the peer has ended.
            WaitTimeout: the peer did not appear within `cluster.timeouts.recv`.
        """
        while True:
            connection = self._out.get(peer)
            if connection is not None and connection.closed is None:
                return connection
            with self._lock:
                others = self._connecting.get(peer)
                if others is None:
                    done = self._connecting[peer] = threading.Event()
            if others is not None:
                interruptible(others.wait)
                continue
            try:
                return self._connect(peer, timeout)
            finally:
                with self._lock:
                    del self._connecting[peer]
                done.set()

    def _connect(self, peer: str, timeout: float | None) -> Connection:
        limit = self.run.timeout("recv") if timeout is None else timeout
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
            self._revive(peer, _life_at(info.endpoints))
            error = self.gone(peer)
            if error is not None:
                raise error
            try:
                return connect(
                    self._loop,
                    address,
                    self.run.secret,
                    self._identity,
                    self._on_message,
                    self._on_close,
                    prepare=lambda connection: self._on_connected(connection, peer),
                )
            except OSError as failure:
                info = self._look_again(peer, failure, deadline)

    def _look_again(self, peer: str, failure: OSError, deadline: float | None) -> WorkerInfo:
        """Where a peer is that could not be reached: it may be slow, or started anew."""
        info = self._registry.ask("lives", worker=peer)
        if info is None:
            raise self._why(peer, failure) from failure
        if deadline is not None and time.monotonic() > deadline:
            raise WaitTimeout(f"{peer} to take a connection ({failure})", waiter=self.name)
        interruptible(time.sleep, _RETRY_SECONDS)
        return info

    def _on_connected(self, connection: Connection, peer: str) -> None:
        # Before anything is received: its end must find it here.
        connection.identity["name"] = peer
        with self._lock:
            self._out[peer] = connection

    def _revive(self, peer: str, life: str) -> None:
        """A peer lives, or did when it said so: an end that is known of another is over."""
        with self._lock:
            end = self._ended.get(peer)
            if end is not None and end.life != life:
                del self._ended[peer]

    # -- receiving (one message at a time) ------------------------------------------------------

    def incoming(self, peer: str) -> Connection | None:
        """The connection on which a peer sends to this process; None if it has not made one."""
        connections = self._in.get(peer)
        return connections[-1] if connections else None

    def _on_connect(self, connection: Connection) -> None:
        peer = connection.identity["name"]
        with self._lock:
            self._in.setdefault(peer, []).append(connection)
        self._revive(peer, connection.identity.get("life", ""))

    def _on_message(self, connection: Connection, meta: bytes, buffers: list[memoryview]) -> None:
        kind, fields, *place = pickle.loads(meta)
        sender = connection.identity["name"]
        body: Any = buffers
        with self._serial:
            if place:
                body = self._unpacker.open(connection, sender, buffers, *place)
            self._handlers[kind](sender, connection, fields, body)

    def _send_release(self, connection: Connection, blocks: list[int], tokens: list[int]) -> None:
        self._drop_if_ended(connection, "free", (blocks, tokens))

    def _on_free(
        self, sender: str, connection: Connection, fields: tuple[Any, ...], payload: Any
    ) -> None:
        self.packer.released(sender, *fields)

    # -- ends -----------------------------------------------------------------------------------

    def _on_close(self, connection: Connection, reason: str) -> None:
        peer = connection.identity.get("name", "")
        with self._lock:
            incoming = self._in.get(peer, [])
            if connection in incoming:
                incoming.remove(connection)
            if self._out.get(peer) is connection:
                del self._out[peer]
        if peer in self._ended:
            self._tell_end(peer)

    def _on_death(self, death: Death) -> None:
        self._end(death.name, self._explain(death), death.info)

    def _on_leave(self, name: str, info: WorkerInfo | None) -> None:
        self._end(name, PeerLeft(name, exit_code=0, cause="its group was closed"), info)

    def _explain(self, death: Death) -> WorkerDied:
        info = death.info
        if info is None:
            return WorkerDied(death.name, cause=death.reason)
        if info.cluster_node_rank != self.node_rank:
            return WorkerDied(
                death.name,
                node_rank=info.cluster_node_rank,
                node_ip=info.node_ip,
                pid=info.pid,
                cause=death.reason,
            )
        files = [worker_file(self.run.log_dir, death.name, s) for s in (".box", ".log")]
        return diagnose(
            death.name,
            examine(*files, info.pid),
            node_rank=info.cluster_node_rank,
            node_ip=info.node_ip,
            message=death.reason,
            oom_kills_before=self._oom_kills,
        )

    def _end(self, peer: str, error: BaseException, info: WorkerInfo | None) -> None:
        with self._lock:
            self._ended[peer] = _End(error, _life_at(info.endpoints) if info is not None else "")
            self._infos.pop(peer, None)
            connections = [*self._in.get(peer, ()), *filter(None, [self._out.get(peer)])]
        for connection in connections:
            connection.expire()
        if "packer" in self.__dict__:
            self.packer.reader_gone(peer, error)
        if "_unpacker" in self.__dict__:
            self._unpacker.sender_gone(peer)
        self.links.peer_gone(peer, error)
        self._tell_end(peer)

    def _tell_end(self, peer: str) -> None:
        """Tells of an end once everything that the peer had sent has been read."""
        with self._lock:
            drained = not self._in.get(peer) and peer not in self._out
            end = self._ended.get(peer)
        if drained and end is not None:
            with self._serial:
                for watcher in list(self._watchers):
                    watcher(peer, end.error)

    def ended(self, peer: str, life: str | None = None) -> BaseException | None:
        """Why a peer has ended; None while it lives or still has data on the way.

        Args:
            peer: its name.
            life: which of those that had the name, if that is known.
        """
        with self._lock:
            end = self._ended.get(peer)
            if self._in.get(peer) or end is None or life not in (None, end.life):
                return None
            return end.error

    def gone(self, peer: str) -> BaseException | None:
        """Like `ended`, also while data of the peer is still on the way."""
        end = self._ended.get(peer)
        return None if end is None else end.error

    def lost(self, peer: str) -> BaseException | None:
        """Like `ended`, but None for a peer that was started anew; not for the I/O thread."""
        error = self.ended(peer)
        if error is None:
            return None
        info = self._registry.ask("lives", worker=peer)
        if info is None:
            return error
        self._revive(peer, _life_at(info.endpoints))
        return self.ended(peer)


def _life_at(addresses: list[Address]) -> str:
    """Tells processes of one name apart: the socket of each is another one."""
    return addresses[0][1] if addresses else ""


def _loudly(function: Callable[..., Any], *args: Any) -> None:
    """Runs a background task; what it raises is shown, because nobody waits for it."""
    try:
        function(*args)
    except (WorkerDied, WaitTimeout):
        # Whoever depends on the peer is told by its end.
        pass
    except Exception:
        traceback.print_exc()
