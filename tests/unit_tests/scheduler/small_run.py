"""A run inside one process, without Ray: its members can be stalled and killed at a chosen moment.

Each member has a runtime, sockets and an I/O thread of its own, as if it were a process.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.channel.channel import Channel
from rlinf.scheduler.channel.spec import ChannelSpec
from rlinf.scheduler.net.auth import new_secret
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.registry.server import RegistryServer
from rlinf.scheduler.spec import RunSpec
from rlinf.scheduler.worker.channel_keeper import ChannelKeeper
from rlinf.scheduler.worker.locks import DeviceLock
from rlinf.scheduler.worker.runtime import ProcessRuntime
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


class SmallRun:
    """The registry, and those who have joined.

    Args:
        log_dir: where members would log.
        num_nodes: with several, members on different nodes exchange data over TCP.
        host: address that all have.
        ports: lowest and highest port that they listen on; None is any.
        encryption: whether what members on different nodes exchange is encrypted.
    """

    def __init__(
        self,
        log_dir: Path,
        num_nodes: int = 1,
        host: str = "127.0.0.1",
        ports: tuple[int, int] | None = None,
        encryption: bool = False,
    ):
        secret = new_secret()
        self._host = host
        names = ("registry", "recv", "channel", "lock", "launch")
        self._spec = RunSpec(
            "small",
            "small",
            secret,
            [],
            driver_node_rank=0,
            num_nodes=num_nodes,
            log_dir=str(log_dir),
            timeouts={name: 3 * PROMPTLY for name in names},
            ports=ports,
            encryption=encryption,
        )
        tls = self._spec.tls
        self.server = RegistryServer(secret, host if num_nodes > 1 else None, ports=ports, tls=tls)
        self._spec.registry = self.server.addresses
        self._members: list[ProcessRuntime] = []

    def join(
        self,
        name: str,
        node_rank: int = 0,
        wire: Wire | None = None,
        visible: list[int] | None = None,
        own: list[int] | None = None,
    ) -> ProcessRuntime:
        """A new member, registered as a worker whose group is complete.

        Args:
            name: its name.
            node_rank: its node.
            wire: what connections from other nodes to it pass through.
            visible: cluster-wide ids of the accelerators that it sees.
            own: cluster-wide ids of those that it was given.
        """
        member = ProcessRuntime(name, self._spec, node_rank, [self._host], visible)
        self._members.append(member)
        endpoints = member.endpoint.addresses
        if wire is not None:
            wire.lead_to(endpoints[1])
            endpoints[1] = wire.address
        address = WorkerAddress.from_name(name)
        info = WorkerInfo(
            address,
            rank=address.rank,
            group_world_size=1,
            cluster_node_rank=node_rank,
            available_accelerators=own or [],
            endpoints=endpoints,
            memory_domain=member.endpoint.domain,
        )
        member.registry.ask("register", info=info)
        return member

    def keeper(self, name: str = "keeper:0") -> ProcessRuntime:
        """A member that keeps channels."""
        member = self.join(name)
        keeper: Any = object.__new__(ChannelKeeper)
        keeper._runtime = member
        keeper.__init__()
        return member

    def channel(self, member: ProcessRuntime, name: str, **settings: Any) -> Channel:
        """A member's side of a channel, which is made if need be."""
        channel = Channel(ChannelSpec(name, **{"keepers": ("keeper:0",), **settings}))
        channel._bound = member.channels
        for work in member.channels.ask_all(channel._spec, "q.open", channel._spec):
            work.wait()
        return channel

    def lock(self, member: ProcessRuntime) -> DeviceLock:
        """A member's side of the lock of a device."""
        return DeviceLock(member, ["device"])

    def kill(self, member: ProcessRuntime) -> None:
        """Ends a member without a word; returns when the registry has told those concerned."""
        told = set(self.server.watchers_of(member.name))
        deaths = len(self.server.deaths())
        self._cut(member)
        self._members.remove(member)
        wait_until(lambda: len(self.server.deaths()) > deaths)
        others = [other.registry for other in self._members if other.name in told]
        wait_until(lambda: all(member.name in registry.dead for registry in others))

    @staticmethod
    def _cut(member: ProcessRuntime) -> None:
        loop = member.registry.loop
        loop._stopping = True

        def cut(connection: Any, *_: Any) -> None:
            if isinstance(connection, Connection):
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            else:
                connection.close()

        # Those who are just being admitted come later.
        loop.add = cut
        for connection in list(loop._members.values()):
            cut(connection)

    def close(self) -> None:
        """Ends all."""
        for member in self._members:
            member.close()
        self.server.close()


class Wire:
    """A TCP relay between two members that breaks when and how a test says.

    Args:
        reset: end connections with RST, which drops what was not read yet; otherwise with FIN.
    """

    def __init__(self, reset: bool = False):
        self._reset = reset
        self._target: Any = None
        self._left: int | None = None
        self._deaf = False
        self._changed = threading.Condition()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ("tcp", "127.0.0.1", self._listener.getsockname()[1])
        self.passed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, address: Any) -> None:
        """Sets where connections lead to."""
        self._target = address[1:]

    def cut_after(self, nbytes: int) -> None:
        """Breaks when so many more bytes have gone to the target."""
        with self._changed:
            self._left = nbytes

    def swallow(self) -> None:
        """Drops all that is sent to the target from now on."""
        self._deaf = True

    def cut(self, ends: str = "both") -> None:
        """Breaks all connections: at "both" ends, or only for the "source"."""
        with self._changed:
            pairs, self._deaf = list(self._pairs), False
            if ends == "both":
                self._pairs.clear()
        for source, target in pairs:
            for sock in (source, target) if ends == "both" else (source,):
                with contextlib.suppress(OSError):
                    if self._reset:
                        linger = struct.pack("ii", 1, 0)
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    # Wakes the thread that reads it, which has it open as well.
                    sock.shutdown(socket.SHUT_RD if self._reset else socket.SHUT_RDWR)
                sock.close()

    def close(self) -> None:
        """Ends everything."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                source, _ = self._listener.accept()
                target = socket.create_connection(self._target)
                with self._changed:
                    self._pairs.append((source, target))
                for args in ((source, target, True), (target, source, False)):
                    threading.Thread(target=self._pump, args=args, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(1 << 16):
                cut = False
                if counted:
                    with self._changed:
                        if self._left is not None:
                            data, self._left = data[: self._left], self._left - len(data)
                            cut = self._left <= 0
                            if cut:
                                self._left = None
                        deaf = self._deaf
                        self.passed += len(data)
                    if deaf:
                        continue
                target.sendall(data)
                if cut:
                    self.cut()
                    return


@contextlib.contextmanager
def stalled(member: ProcessRuntime) -> Iterator[None]:
    """Stops the I/O thread of a member for the duration of the block."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait(3 * PROMPTLY)

    member.registry.loop.call_soon(stand)
    assert stands.wait(PROMPTLY)
    try:
        yield
    finally:
        goes_on.set()


def in_thread(function: Any, *args: Any) -> Outcome:
    """Runs something in a thread: there the I/O thread alone reads what comes."""
    return Outcome(function, args)


class Outcome:
    """What became of something that runs in a thread."""

    def __init__(self, function: Any, args: tuple[Any, ...]):
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function, args), daemon=True)
        self._thread.start()

    def _run(self, function: Any, args: tuple[Any, ...]) -> None:
        try:
            self._value = function(*args)
        except BaseException as error:
            self._error = error

    def wait(self) -> Any:
        """Its value, or raises what it raised."""
        self._thread.join(PROMPTLY)
        assert not self._thread.is_alive(), f"it hangs after {PROMPTLY:g} s"
        if self._error is not None:
            raise self._error
        return self._value
