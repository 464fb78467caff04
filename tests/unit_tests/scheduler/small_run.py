"""A run inside one process, without Ray: its members can be stalled and killed at a chosen moment.

Each member has a runtime, sockets and an I/O thread of its own, as if it were a process.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlinf.scheduler.channel.channel import Channel
from rlinf.scheduler.channel.keeper import ChannelKeeper
from rlinf.scheduler.channel.spec import ChannelSpec
from rlinf.scheduler.net.auth import new_secret
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.registry.server import RegistryServer
from rlinf.scheduler.worker.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.worker.locks import DeviceLock
from rlinf.scheduler.worker.runtime import ProcessRuntime
from rlinf.scheduler.worker.spec import RunSpec
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


class SmallRun:
    """The registry, and those who have joined."""

    def __init__(self, log_dir: Path):
        secret = new_secret()
        self.server = RegistryServer(secret)
        names = ("registry", "recv", "channel", "lock", "launch")
        self._spec = RunSpec(
            "small",
            "small",
            secret,
            self.server.addresses,
            driver_node_rank=0,
            num_nodes=1,
            log_dir=str(log_dir),
            timeouts={name: 3 * PROMPTLY for name in names},
        )
        self._members: list[ProcessRuntime] = []

    def join(self, name: str) -> ProcessRuntime:
        """A new member, registered as a worker that is the only one of its group."""
        member = ProcessRuntime(name, self._spec, 0, "127.0.0.1")
        self._members.append(member)
        info = WorkerInfo(
            WorkerAddress.from_name(name),
            rank=0,
            group_world_size=1,
            endpoints=member.endpoint.addresses,
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
        channel = Channel(ChannelSpec(name, keepers=("keeper:0",), **settings))
        channel._bound = member.channels
        for work in member.channels.ask_all(channel._spec, "q.open", channel._spec):
            work.wait()
        return channel

    def lock(self, member: ProcessRuntime) -> DeviceLock:
        """A member's side of the lock of a device."""
        return DeviceLock(member, ["device"])

    def kill(self, member: ProcessRuntime) -> None:
        """Ends a member without a word; returns when the registry has told all others."""
        self._cut(member)
        self._members.remove(member)
        wait_until(lambda: all(member.name in other.registry.dead for other in self._members))

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
