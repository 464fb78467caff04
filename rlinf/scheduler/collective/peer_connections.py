"""The connections of a process to its peers: one to each, made at first use, messages numbered."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from functools import partial

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.collective.peer_losses import PeerLosses
from rlinf.scheduler.deadlines import Deadline, wait_within
from rlinf.scheduler.errors import ConnectionBroken, SchedulerError, WaitTimeout, WorkerDied
from rlinf.scheduler.net import forks
from rlinf.scheduler.net.connection import Connection, Numbers
from rlinf.scheduler.net.interrupts import interruptible
from rlinf.scheduler.net.link_watch import LinkWatch
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Address, address_on_link, connect
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.spec import RunSpec

_RETRY_SECONDS = 0.05


class PeerConnections:
    """Makes connections to peers and keeps those that peers have made.

    Two processes that both send have two connections, one made by each.

    Args:
        name: name of this process.
        life: tells this process from others that had its name.
        addresses: where this process takes data; peers are told.
        run: what all processes share.
        node_rank: node of this process.
        registry: knows where peers are.
        losses: the peers that can no longer be reached.
        watch: notices hosts that have fallen silent.
        loop: reads the connections.
        on_message: takes messages; see `Connection`.
        on_close: is told of the end of a connection.
    """

    def __init__(
        self,
        name: str,
        life: str,
        addresses: Callable[[], list[Address]],
        run: RunSpec,
        node_rank: int,
        registry: RegistryClient,
        losses: PeerLosses,
        watch: LinkWatch,
        loop: IOLoop,
        on_message: Callable[[Connection, bytes, list[memoryview]], None],
        on_close: Callable[[Connection, str], None],
    ):
        self._name = name
        self._life = life
        self._addresses = addresses
        self._run = run
        self._node_rank = node_rank
        self._registry = registry
        self._losses = losses
        self._watch = watch
        self._loop = loop
        self._on_message = on_message
        self._on_close = on_close
        self._out: dict[str, Connection] = {}
        self._in: dict[str, list[Connection]] = {}
        self._infos: dict[str, WorkerInfo] = {}
        self._making: dict[str, threading.Event] = {}
        # By peer, its life and whether this process has made the connection.
        self._numbers: dict[tuple[str, str, bool], Numbers] = {}
        self._lock = threading.Lock()
        self._forked: str | None = None
        forks.in_child(self)

    # -- what is there --------------------------------------------------------------------------

    def info(self, peer: str) -> WorkerInfo | None:
        """Return what the registry says of a peer that has been reached before."""
        return self._infos.get(peer)

    def outgoing(self, peer: str) -> Connection | None:
        """Return the connection that this process has made to a peer, if it is usable."""
        connection = self._out.get(peer)
        return connection if connection is not None and connection.closed is None else None

    def incoming(self, peer: str) -> Connection | None:
        """Return the connection on which a peer sends to this process, if it has made one."""
        connections = self._in.get(peer)
        return connections[-1] if connections else None

    def of(self, peer: str) -> list[Connection]:
        """Return all connections to a peer, in both directions."""
        with self._lock:
            return [*self._in.get(peer, ()), *filter(None, [self._out.get(peer)])]

    def listener_of(self, connection: Connection) -> Address | None:
        """Return where the peer of a TCP connection takes new ones, if it is known."""
        identity = connection.identity
        if "address" in identity:
            # This process has made the connection.
            return identity["address"]
        return address_on_link(connection, [tuple(a) for a in identity.get("listens", ())])

    # -- connections of peers (I/O thread) ------------------------------------------------------

    def admit(self, connection: Connection) -> str | None:
        """Take a connection that a peer has made.

        Returns:
            What shows that messages of the peer were lost; None if none were.
        """
        peer, life = connection.identity["name"], connection.identity.get("life", "")
        numbers = connection.numbers = self._numbers_of(peer, life, outgoing=False)
        with self._lock:
            self._in.setdefault(peer, []).append(connection)
        self._losses.revive(peer, life)
        first, due = connection.identity.get("sent", 0) + 1, numbers.received + 1
        if isinstance(self._losses.error(peer), ConnectionBroken) or first < due:
            # The second: the peer gave it up in the handshake, and has used another one since.
            connection.shut()
        elif first != due:
            return f"message {first} is the next where message {due} is due"
        return None

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        peer = connection.identity.get("name", "")
        with self._lock:
            incoming = self._in.get(peer, [])
            if connection in incoming:
                incoming.remove(connection)
            if self._out.get(peer) is connection:
                del self._out[peer]

    def forget(self, peer: str, life: str) -> None:
        """Forget where a peer was that has ended, and the numbers of its messages."""
        with self._lock:
            self._infos.pop(peer, None)
            for outgoing in (True, False):
                self._numbers.pop((peer, life, outgoing), None)

    # -- connections to peers -------------------------------------------------------------------

    def check_process(self) -> None:
        """Check that this is the process that the connections belong to.

        Raises:
            SchedulerError: this is a forked child.
        """
        if self._forked is not None:
            raise SchedulerError(f"{self._name}: {self._forked}")

    def close_in_child(self, reason: str) -> None:
        """Refuse all use in a forked child."""
        self._forked = reason

    def to(self, peer: str) -> Connection:
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
                error = self._losses.error(peer)
                if isinstance(error, ConnectionBroken):
                    raise error
                return connection
            if connection is not None:
                self.await_end(connection)
            self._losses.settle(peer)
            with self._lock:
                others = self._making.get(peer)
                if others is None:
                    done = self._making[peer] = threading.Event()
            if others is not None:
                interruptible(others.wait)
                continue
            try:
                return self._connect(peer)
            finally:
                with self._lock:
                    del self._making[peer]
                done.set()

    def await_end(self, connection: Connection) -> None:
        """Wait until the end of a connection has been dealt with; not for the I/O thread."""
        limit = self._run.timeout("recv")
        if not wait_within(limit, lambda s: interruptible(connection.over.wait, s)):
            what = f"the end of a connection to {connection.identity['name']} to be dealt with"
            raise WaitTimeout(what, waiter=self._name, seconds=limit)

    def locate(self, peer: str) -> WorkerInfo:
        """Return where a peer is; wait for it, at first use.

        Raises:
            PeerLost: the peer has ended.
            WaitTimeout: the peer did not appear within `cluster.timeouts.recv`.
        """
        limit = self._run.timeout("recv")
        what = f"{peer} to register, in order to send to it"
        try:
            info = self._registry.ask("lookup", worker=peer, timeout=limit, what=what)
        except ConnectionError as error:
            raise self._why(peer, error) from error
        with self._lock:
            self._infos[peer] = info
        return info

    def _connect(self, peer: str) -> Connection:
        deadline = Deadline(self._run.timeout("recv"))
        info = self.locate(peer)
        attempt = 0
        while True:
            address = self._address_of(peer, info, attempt)
            attempt += 1
            if address is None:
                raise WorkerDied(peer, cause=f"it has no address for node {self._node_rank}")
            with self._lock:
                self._infos[peer] = info
            life = info.life
            self._losses.revive(peer, life)
            error = self._losses.error(peer)
            if error is not None:
                raise error
            numbers = self._numbers_of(peer, life, outgoing=True)
            try:
                return connect(
                    self._loop,
                    address,
                    self._run.secret,
                    {
                        "name": self._name,
                        "life": self._life,
                        "sent": numbers.sent,
                        "listens": self._addresses(),
                    },
                    self._on_message,
                    self._on_close,
                    prepare=partial(self._keep, peer, life, numbers),
                    tls=self._run.tls,
                )
            except OSError as failure:
                info = self._look_again(peer, failure, deadline)

    def _address_of(self, peer: str, info: WorkerInfo, attempt: int) -> Address | None:
        """Return where to reach a peer; on another node, pairs share its interfaces evenly."""
        if info.cluster_node_rank == self._node_rank:
            return info.endpoints[0] if info.endpoints else None
        usable = [address for address in info.endpoints if address[0] == "tcp"]
        first = zlib.crc32(f"{self._name} {peer}".encode())
        return usable[(first + attempt) % len(usable)] if usable else None

    def _look_again(self, peer: str, failure: OSError, deadline: Deadline) -> WorkerInfo:
        """Return where a peer is that could not be reached; it may be slow, or started anew."""
        info = self._registry.ask("lives", worker=peer)
        if info is None:
            raise self._why(peer, failure) from failure
        if deadline.passed():
            raise WaitTimeout(f"{peer} to take a connection ({failure})", waiter=self._name)
        interruptible(time.sleep, _RETRY_SECONDS)
        return info

    def _why(self, peer: str, error: BaseException) -> BaseException:
        """Return what to say of a peer that the registry says has ended."""
        return self._losses.error(peer) or WorkerDied(peer, cause=str(error))

    def _keep(self, peer: str, life: str, numbers: Numbers, connection: Connection) -> None:
        # Before anything is received: its end must find it here.
        connection.identity |= {"name": peer, "life": life}
        connection.numbers = numbers
        with self._lock:
            self._out[peer] = connection
        self._watch.add(connection)

    def _numbers_of(self, peer: str, life: str, outgoing: bool) -> Numbers:
        """Return the numbers of the messages on connections that one of the two has made."""
        with self._lock:
            return self._numbers.setdefault((peer, life, outgoing), Numbers())
