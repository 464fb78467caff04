"""A process that plays many ranks of a run: real sockets and control plane, no Ray and no work.

Each rank has its own connection to the registry, its own endpoint and its own name. The ranks of a
process share one I/O thread and one packer, which is what makes them light.
"""

from __future__ import annotations

import heapq
import os
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.collective.broadcast import Broadcaster
from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.collective.mailbox import Mailbox
from rlinf.scheduler.collective.payload import Packer
from rlinf.scheduler.collective.work import Work
from rlinf.scheduler.net.link_watch import LinkWatch
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.spec import RunSpec

RANKS_PER_NODE = 8
_AT_ONCE = 16
"""Ranks of a process that join, or connect to others, at the same time."""
_STACK_BYTES = 256 * 1024


class LightRank:
    """One rank: what a worker process has of the control plane.

    Args:
        run: what all processes share.
        group: name of its group.
        rank: its rank.
        size: ranks of the group.
        loop: I/O thread of the process.
    """

    def __init__(self, run: RunSpec, group: str, rank: int, size: int, loop: IOLoop):
        self._run = run
        self._rank = rank
        self._size = size
        self._loop = loop
        self._address = WorkerAddress(group, rank)
        self._node_rank = rank // RANKS_PER_NODE
        self._work: Work

    def join(self) -> None:
        """Connect to the registry and begin to take data."""
        name, local = self._address.get_name(), self._node_rank == self._run.driver_node_rank
        self.registry = RegistryClient(
            self._run.registry, self._run.secret, name, local=local, loop=self._loop
        )
        self.registry.on_inquiry("status", lambda _: "idle")
        self.registry.on_inquiry("leave", lambda _: set())
        self.endpoint = Endpoint(name, self._run, self._node_rank, ["127.0.0.1"], self.registry)
        self.mailbox = Mailbox(self.endpoint)
        self.broadcaster = Broadcaster(self.endpoint, self.mailbox)
        self.registry.ask("port", node_rank=self._node_rank, port=20_000 + self._rank)

    def register(self) -> WorkerInfo:
        """Enter the registry, wait for rank 0 of the group, and say that it is ready."""
        info = WorkerInfo(
            self._address,
            self._rank,
            self._size,
            cluster_node_rank=self._node_rank,
            node_port=20_000 + self._rank,
            pid=os.getpid(),
            endpoints=self.endpoint.addresses,
            memory_domain=self.endpoint.domain,
        )
        self.registry.ask("register", info=info)
        self.registry.ask("ready")
        return info

    def noop(self) -> None:
        """Do nothing."""

    def question(self) -> None:
        """Ask what workers ask before they exchange data."""
        group = self._address.root_group_name
        assert self.registry.ask("group_size", group=group) == self._size
        self.registry.ask("take", key="topology")

    def listen(self) -> None:
        """Begin to wait for a message of the rank before, which has never been reached."""
        self._work = self.mailbox.recv(self._name_of(self._rank - 1))

    def greet(self) -> None:
        """Send a message to the next rank."""
        self.mailbox.send(self._name_of(self._rank + 1), self._rank).wait()

    def hear(self) -> None:
        """Take the message of the rank before."""
        assert self._work.wait() == (self._rank - 1) % self._size

    def begin_broadcast(self, number: int) -> None:
        """Take part in a broadcast of rank 0 to all."""
        groups = [(self._address.root_group_name, range(self._size))]
        obj = number if self._rank == 0 else None
        self._work = self.broadcaster.broadcast(obj, groups, None)

    def end_broadcast(self, number: int) -> None:
        """Wait for it."""
        assert self._work.wait() == number

    def _name_of(self, rank: int) -> str:
        return WorkerAddress(self._address.root_group_name, rank % self._size).get_name()

    def wait_told(self, peer: str) -> float:
        """Wait until this rank knows that a peer has ended; return when that was."""
        while self.endpoint.gone(peer) is None:
            time.sleep(0.0005)
        return time.monotonic()


class _Timers:
    """Calls functions at given moments, all from one thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def at(self, moment: float, function: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._entries, (moment, id(function), function))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._entries)
                moment, _, function = self._entries[0]
                left = moment - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                heapq.heappop(self._entries)
            function()


class Host:
    """Runs the calls of the driver on the ranks of this process.

    Args:
        pipe: brings `(call, rank, method, args)` and takes `(call, value, error)`.
        run: what all processes share.
        group: name of the group.
        ranks: the ranks of this process.
        size: ranks of the group.
    """

    def __init__(self, pipe: Pipe, run: RunSpec, group: str, ranks: list[int], size: int):
        self._pipe = pipe
        self._writing = threading.Lock()
        loop = IOLoop()
        self._ranks = {rank: LightRank(run, group, rank, size, loop) for rank in ranks}
        # The first rank of a process pays for what all of them need. It is not measured.
        first = LightRank(run, "first", ranks[0], 1, loop)
        first.join()
        self._packer: Packer = first.endpoint.packer
        first.registry.close()
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        # Registering waits for rank 0, which is the last one to start.
        self._starting = ThreadPoolExecutor(len(ranks))
        self._joining = threading.Semaphore(_AT_ONCE)
        self._timers = _Timers()

    def serve(self) -> None:
        """Run calls until the driver has gone."""
        with suppress(EOFError, OSError):
            while True:
                call, rank, method, args = self._pipe.recv()
                if method == "rlinf_start":
                    self._starting.submit(self._answer, call, self._start, rank)
                elif method == "end_at":
                    self._timers.at(args[0], lambda call=call: self._answer(call, lambda: None))
                else:
                    self._pool.submit(self._answer, call, getattr(self._ranks[rank], method), *args)

    def _start(self, rank: int) -> WorkerInfo:
        member = self._ranks[rank]
        with self._joining:
            member.join()
            member.endpoint.packer = self._packer
        return member.register()

    def _answer(self, call: int, function: Callable[..., Any], *args: Any) -> None:
        value, error = None, None
        try:
            value = function(*args)
        except Exception as failure:
            error = failure
        with self._writing:
            self._pipe.send((call, value, error))


def serve(pipe: Pipe, run: RunSpec, group: str, ranks: list[int], size: int) -> None:
    """Be a host, in a process of its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.stack_size(_STACK_BYTES)
    # A thread that looks at the links of a process is nothing that each light rank should have. The
    # driver's looks at all of them.
    LinkWatch.add = lambda watch, connection: None  # type: ignore[method-assign]
    Host(pipe, run, group, ranks, size).serve()
