"""Ends groups of workers, and makes sure that nothing which the cluster started outlives it.

Every part has a deadline of its own, and one that fails does not keep the next from being done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf.scheduler.errors import WaitTimeout

if TYPE_CHECKING:
    from rlinf.scheduler.cluster.ray_session import RaySession
    from rlinf.scheduler.registry.client import RegistryClient
    from rlinf.scheduler.registry.server import RegistryServer
    from rlinf.scheduler.topology.node import NodeInfo
    from rlinf.scheduler.worker.backend import CallBackend
    from rlinf.scheduler.worker.launched import LaunchedGroup

_KILL_SECONDS = 2.0
"""How long a worker has to end when Ray asks it to, before its process is killed."""
_LEAVE_SECONDS = 2.0
"""How long workers have to say what they read of the configuration."""


class DriverAccess(NamedTuple):
    """What only the driver has: ways to reach the processes themselves.

    Attributes:
        server: the registry.
        session: the connection to Ray.
        nodes: the nodes of the cluster, by rank.
        node_rank: the node of the driver.
    """

    server: RegistryServer
    session: RaySession
    nodes: Sequence[NodeInfo]
    node_rank: int


class GroupShutdown:
    """Ends groups: asks their workers, then tells Ray, then kills the processes.

    Args:
        registry: the lifeline, which knows who has gone.
        seconds: deadline of each part that may take long.
        driver_access: what only the driver has; None in a worker.
        awake: picks those workers that may answer.
    """

    def __init__(
        self,
        registry: RegistryClient,
        seconds: float,
        driver_access: DriverAccess | None = None,
        awake: Callable[[list[str]], list[str]] = list,
    ):
        self._registry = registry
        self._seconds = seconds
        self._driver_access = driver_access
        self._awake = awake

    def end(self, groups: Sequence[LaunchedGroup]) -> None:
        """End the workers of some groups and wait until they are gone.

        Raises:
            WaitTimeout: some are still there, although they were killed.
        """
        actors = {g.name_of(rank): actor for g in groups for rank, actor in enumerate(g.actors)}
        names = list(actors)
        awake = dict.fromkeys(self._awake(names))
        told = [g.name_of(rank) for g in groups if g.closes_itself for rank in range(len(g.actors))]
        if not names:
            return
        backend = groups[0].backend
        with attempt("letting workers close what they have open"):
            self._let_close(backend, [actors[name] for name in told if name in awake])
        with attempt("asking workers what they read"):
            self._take_leave(list(awake))
        with attempt("telling the registry who ends"):
            self._registry.ask("expect_exit", names=names)
        # Ray asks a process to end, and one that has been stopped does not hear it.
        with attempt("killing workers that were stopped"):
            self._kill([name for name in names if name not in awake])
        with attempt("telling Ray to end workers"):
            in_time(self._seconds, "Ray to end workers", lambda: backend.end([*actors.values()]))
        what = f"{names} to end"
        try:
            self._registry.ask("gone", names=names, what=what, timeout=_KILL_SECONDS)
        except WaitTimeout:
            with attempt("killing workers"):
                self._kill(names)
            self._registry.ask("gone", names=names, what=what, timeout=self._seconds)

    def _let_close(self, backend: CallBackend, actors: list[Any]) -> None:
        calls = [actor.rlinf_shut_down.remote() for actor in actors]
        if calls:
            backend.wait(calls, len(calls), self._seconds)

    def _take_leave(self, names: list[str]) -> None:
        if self._driver_access is not None:
            server = self._driver_access.server
            for reads in server.inquire("leave", None, names, timeout=_LEAVE_SECONDS).values():
                server.state.config_reads |= reads

    def _kill(self, names: list[str]) -> None:
        """Kill processes, those on other nodes all at the same time."""
        if self._driver_access is None:
            return
        server, session, nodes, here = self._driver_access
        by_node: dict[int, list[int]] = {}
        for name in names:
            info = server.state.workers.get(name)
            if info is not None:
                by_node.setdefault(info.cluster_node_rank, []).append(info.pid)
        kill_processes(by_node.pop(here, []))
        deadline = time.monotonic() + self._seconds
        started = {
            rank: session.start_on(nodes[rank].ray_id, kill_processes, pids)
            for rank, pids in by_node.items()
        }
        for rank, result in started.items():
            with attempt(f"killing processes on node {rank}"):
                result(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def attempt(what: str) -> Iterator[None]:
    """Go on when a part of the shutdown fails, and say so."""
    try:
        yield
    except Exception as error:
        said = f"warning: {what} failed ({type(error).__name__}: {error}); the shutdown goes on"
        print(said, file=sys.stderr, flush=True)


def in_time(seconds: float, what: str, function: Callable[[], None]) -> None:
    """Run something that has no deadline of its own and may never come back.

    Raises:
        WaitTimeout: it has not come back; it goes on by itself.
        Exception: whatever it raised.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="rlinf-shutdown", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise WaitTimeout(what, seconds=seconds)
    if failures:
        raise failures[0]


def leave_ray(session: RaySession, started: list[Any], seconds: float) -> None:
    """Leave Ray, and end what is left of one's own.

    Args:
        session: the connection to Ray.
        started: processes of a Ray that was started here.
        seconds: how long Ray may take, and then what is left.
    """
    # Ray knows no deadline here, but it waits for processes only.
    with attempt("leaving Ray"), after(seconds, end_leftovers, started, 0.0):
        session.close()
    with attempt("ending what Ray left"):
        end_leftovers(started, seconds)


@contextlib.contextmanager
def after(seconds: float, function: Callable[..., None], *args: Any) -> Iterator[None]:
    """Call a function, in another thread, if the block takes longer than this."""
    timer = threading.Timer(seconds, function, args)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def our_processes() -> list[Any]:
    """Descendants of this process that belong to Ray; a program may have others of its own."""
    import psutil

    return [process for process in psutil.Process().children(recursive=True) if _is_rays(process)]


def end_leftovers(processes: list[Any], timeout: float) -> None:
    """Wait for processes to end, then end those that did not."""
    import psutil

    deadline = time.monotonic() + timeout
    while (alive := [process for process in processes if runs(process)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.02)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def kill_processes(pids: list[int]) -> None:
    """Kill processes of this machine; one that has ended meanwhile is left alone.

    So is this process, of which workers may be threads.
    """
    for pid in set(pids) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def runs(process: Any) -> bool:
    """Return whether a process runs; a zombie only waits for somebody else to reap it."""
    import psutil

    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_rays(process: Any) -> bool:
    import psutil

    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return (
        "ray::" in line or "/ray/" in line or "ray-dashboard" in line or "default_worker.py" in line
    )
