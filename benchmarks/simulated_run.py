"""A run of many ranks on one machine: the driver's real control plane, and ranks that are light.

The registry, the group, its calls and its end are those of a run. In the place of Ray there are a
few processes that play many ranks each (`benchmarks.simulated_host`), and pipes to them.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from benchmarks.simulated_host import serve
from rlinf.scheduler.cluster.shutdown import DriverAccess, GroupShutdown
from rlinf.scheduler.failure.supervisor import Supervisor
from rlinf.scheduler.net.auth import new_secret
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.registry.server import RegistryServer
from rlinf.scheduler.spec import RunSpec
from rlinf.scheduler.worker.backend import CallFailed, NotYet
from rlinf.scheduler.worker.handle import WorkerGroupFuncResult
from rlinf.scheduler.worker.launched import LaunchedGroup

GROUP = "simulated"
HOSTS = 8
"""Processes that play ranks. One more plays the last rank alone, to be killed alone."""
_QUIET_SECONDS = 0.5
LIMIT = 600.0


class SimulatedCall:
    """A call of a rank."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None
        self.watches: list[_Watch] = []


class _Watch:
    """Somebody who waits until some of his calls have ended."""

    def __init__(self, missing: int):
        self.missing = missing
        self.enough = threading.Event()


class SimulatedBackend:
    """Calls of light ranks; costs of a wait grow with the number of its calls, as those of Ray's.

    Attributes:
        looks: calls that were looked at, each time that they were.
    """

    def __init__(self) -> None:
        self.looks = 0
        self._lock = threading.Lock()

    def finish(self, call: SimulatedCall, value: Any, error: Exception | None) -> None:
        """Take what a call has come to."""
        with self._lock:
            call.value, call.error, call.done = value, error, True
            for watch in call.watches:
                watch.missing -= 1
                if watch.missing == 0:
                    watch.enough.set()
            call.watches = []

    def wait(self, refs: list[SimulatedCall], count: int, timeout: float | None) -> list[Any]:
        """See `CallBackend.wait`."""
        with self._lock:
            self.looks += len(refs)
            ready = [ref for ref in refs if ref.done]
            if len(ready) >= count:
                return ready[:count]
            watch = _Watch(count - len(ready))
            for ref in refs:
                if not ref.done:
                    ref.watches.append(watch)
        watch.enough.wait(timeout)
        with self._lock:
            for ref in refs:
                if watch in ref.watches:
                    ref.watches.remove(watch)
            return [ref for ref in refs if ref.done][:count]

    def get(self, refs: list[SimulatedCall], timeout: float | None = None) -> list[Any]:
        """See `CallBackend.get`."""
        if len(self.wait(refs, len(refs), timeout)) < len(refs):
            raise NotYet("not all calls have ended")
        for ref in refs:
            if ref.error is not None:
                raise CallFailed(str(ref.error)) from ref.error
        return [ref.value for ref in refs]

    def end(self, actors: list[Any]) -> None:
        """See `CallBackend.end`: kills the processes of the ranks."""
        for host in {id(actor.host): actor.host for actor in actors}.values():
            host.kill()


class SimulatedActor:
    """A rank as the driver sees it; its methods are called as those of Ray's actors are.

    Args:
        host: the process that plays it.
        rank: its rank.
        before: called before its start.
    """

    def __init__(self, host: _HostProcess, rank: int, before: Callable[[], None] | None = None):
        self.host = host
        self.rank = rank
        self._before = before

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    def start_call(self, method: str, args: tuple[Any, ...]) -> SimulatedCall:
        """Start a method."""
        call = SimulatedCall()
        if method == "rlinf_start" and self._before is not None:
            before = self._before
            threading.Thread(
                target=lambda: (before(), self.host.send(call, self.rank, method, args)),
                daemon=True,
            ).start()
        else:
            self.host.send(call, self.rank, method, args)
        return call


class _Method:
    def __init__(self, actor: SimulatedActor, name: str):
        self._actor = actor
        self._name = name

    def remote(self, *args: Any) -> SimulatedCall:
        return self._actor.start_call(self._name, args)


class _HostProcess:
    """A process that plays ranks, and the pipe to it."""

    def __init__(self, run: RunSpec, ranks: list[int], size: int, backend: SimulatedBackend):
        self.ranks = ranks
        self._backend = backend
        self._calls: dict[int, SimulatedCall] = {}
        self._numbers = itertools.count()
        self._writing = threading.Lock()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        args = (theirs, run, GROUP, ranks, size)
        self._process = context.Process(target=serve, args=args, daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, call: SimulatedCall, rank: int, method: str, args: tuple[Any, ...]) -> None:
        """Start a call."""
        number = next(self._numbers)
        self._calls[number] = call
        with self._writing:
            self._pipe.send((number, rank, method, args))

    def _read(self) -> None:
        try:
            while True:
                number, value, error = self._pipe.recv()
                self._backend.finish(self._calls.pop(number), value, error)
        except (EOFError, OSError):
            for call in list(self._calls.values()):
                self._backend.finish(call, None, ConnectionError("the host has ended"))

    def kill(self) -> None:
        """End the process, and with it all of its ranks, without a word."""
        self._process.kill()

    def join(self) -> None:
        """Wait until the process has gone."""
        self._process.join()


class SimulatedRun:
    """The driver's side of a run of light ranks.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int):
        self.size = size
        secret = new_secret()
        self.server = RegistryServer(secret, "127.0.0.1")
        self._folder = tempfile.TemporaryDirectory(prefix="rlinf-simulated-")
        run = RunSpec(
            "simulated",
            "simulated",
            secret,
            self.server.addresses,
            driver_node_rank=0,
            num_nodes=max(2, size // 8),
            log_dir=self._folder.name,
            timeouts=dict.fromkeys(("registry", "recv", "launch", "call"), LIMIT),
        )
        self.registry = RegistryClient(run.registry, secret, "driver", local=True, timeout=LIMIT)
        self.registry.ask("put_once", key="topology", value="a small value")
        self.backend = SimulatedBackend()
        each = -(-(size - 1) // HOSTS)
        parts = [list(range(size - 1))[i : i + each] for i in range(0, size - 1, each)]
        self.hosts = [
            _HostProcess(run, ranks, size, self.backend) for ranks in [*parts, [size - 1]]
        ]
        by_rank = {rank: host for host in self.hosts for rank in host.ranks}
        actors = [SimulatedActor(by_rank[rank], rank) for rank in range(size)]
        actors[0] = SimulatedActor(by_rank[0], 0, before=self._others_registered)
        supervisor = Supervisor("driver", run, self.registry)
        self.group = LaunchedGroup(GROUP, supervisor, self.backend, actors, [])
        access = DriverAccess(self.server, _NoSession(), [_AnyNode()] * run.num_nodes, 0)
        self.shutdown = GroupShutdown(self.registry, LIMIT, access)
        # The processes are there before anything is timed.
        self._all_up()

    def _all_up(self) -> None:
        for host in self.hosts:
            call = SimulatedCall()
            host.send(call, host.ranks[0], "noop", ())
            self.backend.get([call], LIMIT)

    def _others_registered(self) -> None:
        """Wait until all ranks but rank 0 wait for it."""
        while len(self.server.state.workers) < self.size - 1:
            time.sleep(0.0005)

    def call(self, method: str, *args: Any, ranks: list[int] | None = None) -> list[Any]:
        """Call a method of some ranks, all by default, and wait for it."""
        return self.group.call(method, ranks, args, {}).wait()

    def long_call(self, seconds: float) -> WorkerGroupFuncResult:
        """Start a call whose ranks end one by one over a time."""
        begin = time.monotonic() + 0.2
        refs = [
            actor.end_at.remote(begin + seconds * rank / self.size)
            for rank, actor in enumerate(self.group.actors)
        ]
        return WorkerGroupFuncResult(self.group, "end_at", list(range(self.size)), refs)

    def messages(self) -> int:
        """Return the messages of the registry so far, in both directions."""
        return self.server.received + self.server.sent

    def quiet(self) -> None:
        """Wait until no more messages come or go."""
        before = -1
        while before != self.messages():
            before = self.messages()
            time.sleep(_QUIET_SECONDS)

    def close(self) -> None:
        """End what is left."""
        for host in self.hosts:
            host.kill()
        for host in self.hosts:
            host.join()
        self.registry.close()
        self.server.close()
        self._folder.cleanup()


class _NoSession:
    """In the place of Ray's: other nodes are this machine, whose processes have been killed."""

    def start_on(self, *_: Any) -> Callable[[float], None]:
        return lambda seconds: None


class _AnyNode:
    ray_id = ""


def descriptors() -> int:
    """Return the open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def memory() -> int:
    """Return the resident memory of this process in bytes."""
    return psutil.Process().memory_info().rss
