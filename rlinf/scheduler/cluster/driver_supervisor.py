"""Finds out what happened: how a worker died, what those who do not answer are doing."""

from __future__ import annotations

import functools
import os
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlinf.scheduler.address import WorkerInfo
from rlinf.scheduler.cluster.ray_session import RaySession
from rlinf.scheduler.deadlines import set_paused
from rlinf.scheduler.errors import WaitTimeout, WorkerDied
from rlinf.scheduler.events import Death
from rlinf.scheduler.failure.card import FailureCard
from rlinf.scheduler.failure.post_mortem import PostMortem, diagnose, read_post_mortem
from rlinf.scheduler.failure.process_state import is_stopped, process_state
from rlinf.scheduler.failure.record import STACK_SIGNAL
from rlinf.scheduler.failure.reporter import FailureReporter, StoppedWorker
from rlinf.scheduler.failure.supervisor import Supervisor
from rlinf.scheduler.places import place_on_node
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.registry.server import RegistryServer
from rlinf.scheduler.spec import RunSpec, worker_file
from rlinf.scheduler.topology.node import NodeInfo

_STATUS_SECONDS = 2.0
_STACKS_SECONDS = 3.0
_HEARD_SECONDS = 5.0
"""Within these the registry has noticed the end of a process."""
_EXAMINE_SECONDS = 20.0
"""How long another node may take to say what a worker left there."""


class DriverSupervisor(Supervisor):
    """Finds out how workers ended, what the others are doing, and reports what failed first.

    Args:
        name: name of this process.
        run: what all processes share.
        registry: this process's connection to the registry.
        server: the registry, whose connections answer even when a worker's own code is stuck.
        session: the connection to Ray, by which other nodes are looked at.
        nodes: the nodes of the cluster, by rank.
        node_rank: node of the driver.
        oom_kills: count of processes killed for memory when the run began, by node rank.
    """

    def __init__(
        self,
        name: str,
        run: RunSpec,
        registry: RegistryClient,
        server: RegistryServer,
        session: RaySession,
        nodes: Sequence[NodeInfo],
        node_rank: int,
        oom_kills: dict[int, int],
    ):
        super().__init__(name, run, registry)
        self._server = server
        self._session = session
        self._nodes = nodes
        self._node_rank = node_rank
        self._oom_kills = oom_kills
        self._pauses = 0
        self._pausing = threading.Lock()
        self.folder = Path(run.log_dir)
        self.reporter = FailureReporter(server.state, self.folder, self.explain_death, self.stopped)

    @property
    def recovered_at(self) -> float:
        """The program has recovered from all that failed before this time."""
        return self.reporter.recovered_at

    def note_told(self, failure: BaseException) -> None:
        """See `Supervisor.note_told`."""
        self.reporter.told(failure)

    def note_recovery(self, moment: float) -> None:
        """See `Supervisor.note_recovery`."""
        self.reporter.dealt_with(moment)

    def pause_deadlines(self, paused: bool) -> None:
        """Stop the deadlines of all processes, or let them go on when all who asked have done."""
        with self._pausing:
            before = self._pauses
            self._pauses += 1 if paused else -1
            if bool(before) != bool(self._pauses):
                set_paused(paused)
                self.tell("pause_deadlines", paused, list(self._server.state.workers))

    # -- deaths -------------------------------------------------------------------------------

    def deaths(self) -> list[Death]:
        """See `Supervisor.deaths`."""
        return self._server.deaths()

    def explain_death(self, name: str, message: str = "") -> WorkerDied:
        """Find out how a worker died, or say what is known if its node does not answer."""
        self._server.await_end(name, self._is_gone, _HEARD_SECONDS)
        death = self._last_death(name)
        info = death.info if death is not None else self._server.state.workers.get(name)
        rank, address, pid = None, "", None
        if info is not None:
            rank, address, pid = info.cluster_node_rank, info.node_ip, info.pid
        unclear = functools.partial(WorkerDied, name, node_rank=rank, node_ip=address, pid=pid)
        if death is not None and death.unreachable:
            return unclear(cause=f"its host cannot be reached: {death.reason}")
        if death is None and info is not None and not self._is_gone(info):
            return unclear(cause=f"its connection was lost, but the process still runs; {message}")
        try:
            found = self._read_post_mortem(name, rank, pid)
        except Exception as error:
            seen = message or (death.reason if death is not None else "")
            return unclear(cause=f"its node does not answer ({_gist(error)}); the run saw: {seen}")
        return diagnose(
            name,
            found,
            node_rank=rank,
            node_ip=address,
            message=message,
            oom_kills_before=self._oom_kills.get(rank or 0, found.oom_kills),
        )

    def _read_post_mortem(self, name: str, rank: int | None, pid: int | None) -> PostMortem:
        """Read what a worker left; one that never registered is looked for on this node."""
        files = [worker_file(self._run.log_dir, name, suffix) for suffix in (".record", ".log")]
        if rank is None or rank == self._node_rank:
            return read_post_mortem(*files, pid)
        node = self._nodes[rank]
        return self._session.run_on(
            node.ray_id, _read_there, self._run.run_id, files, pid, timeout=_EXAMINE_SECONDS
        )

    def with_facts(self, died: WorkerDied) -> WorkerDied:
        """See `Supervisor.with_facts`."""
        if died.explained or type(died) is not WorkerDied:
            return died
        known = self.explain_death(died.worker, died.cause)
        known.__cause__ = died.__cause__
        return known

    def _last_death(self, name: str) -> Death | None:
        deaths = [d for d in self._server.deaths_of(name) if d.info is not None]
        return deaths[-1] if deaths else None

    def _is_gone(self, info: WorkerInfo) -> bool:
        """Return whether the process of a worker has ended, as far as can be seen from here."""
        if info.cluster_node_rank != self._node_rank:
            return False
        return process_state(info.pid) in ("", "gone")

    # -- workers that do not answer -------------------------------------------------------------

    def describe_timeout(self, what: str, names: list[str], seconds: float | None) -> WaitTimeout:
        """Say who did not answer and what each was doing; dump all stacks beside the logs."""
        status = self._server.inquire("status", None, self.awake(names), timeout=_STATUS_SECONDS)
        folder = self.dump_stacks()
        holders = []
        for name in names:
            info = self._server.state.workers.get(name)
            where = f"node {info.cluster_node_rank}, pid {info.pid}" if info else "no process yet"
            holders.append(f"{name} ({where}): {status.get(name) or self._mute(info)}")
        advice = f"stacks of all workers are in {folder}"
        return WaitTimeout(what, waiter=self.name, seconds=seconds, holders=holders, advice=advice)

    def _mute(self, info: Any) -> str:
        """Return what can be said of a worker that does not answer its lifeline."""
        if info is None:
            return "has not registered"
        if info.cluster_node_rank != self._node_rank:
            return "does not answer"
        doing = self._activity(info.name)
        state = process_state(info.pid) or "gone"
        return f"{doing}; the process is {state} and does not answer"

    def _activity(self, name: str) -> str:
        """Return what a worker on this node was doing when it said so last."""
        return read_post_mortem(worker_file(self._run.log_dir, name, ".record"), "").activity

    def awake(self, names: list[str]) -> list[str]:
        """Return the workers that are not stopped by a signal, as far as can be seen here."""
        return [name for name in names if not self._is_frozen(self._server.state.workers.get(name))]

    def _is_frozen(self, info: Any) -> bool:
        if info is None or info.cluster_node_rank != self._node_rank:
            return False
        return is_stopped(info.pid)

    def stopped(self) -> list[StoppedWorker]:
        """Return the workers on this node whose processes have been stopped by a signal."""
        found = []
        for name, info in list(self._server.state.workers.items()):
            if not self._is_frozen(info):
                continue
            doing = self._activity(name)
            where = f"node {info.cluster_node_rank} ({info.node_ip}), pid {info.pid}"
            found.append(StoppedWorker(name, where, info.pid, doing))
        return found

    def dump_stacks(self) -> Path:
        """Write the Python stacks of all workers to files and return their folder."""
        folder = self.folder / "stacks"
        folder.mkdir(parents=True, exist_ok=True)
        everybody = self.awake(list(self._server.state.workers))
        answers = self._server.inquire("stacks", None, everybody, timeout=_STACKS_SECONDS)
        for name, text in answers.items():
            (folder / f"{name.replace(':', '_')}.txt").write_text(text)
        for name, info in list(self._server.state.workers.items()):
            here = info.cluster_node_rank == self._node_rank
            if name not in answers and here and process_state(info.pid):
                # Does not need the GIL: written to the worker's .stacks file.
                os.kill(info.pid, STACK_SIGNAL)
        return folder

    def explain(self, error: BaseException) -> FailureCard | None:
        """Make and save the failure card for the error that ends the run; None the second time.

        Whatever goes wrong with the card, the error stays the one that is raised.
        """
        try:
            return self.reporter.report(error)
        except Exception:
            traceback.print_exc()
            return self.reporter.card


def _read_there(run_id: str, files: list[str], pid: int | None) -> PostMortem:
    """Read what a worker left on its node, which runs this."""
    record, log = (str(place_on_node(path, run_id)) for path in files)
    return read_post_mortem(record, log, pid)


def _gist(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}"
