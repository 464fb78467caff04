"""Finds out what happened: how a worker died, what those who do not answer are doing."""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlinf.scheduler.cluster.node import NodeInfo
from rlinf.scheduler.errors import WaitTimeout, WorkerDied
from rlinf.scheduler.failure.autopsy import diagnose
from rlinf.scheduler.failure.blackbox import (
    STACK_SIGNAL,
    Remains,
    examine,
    is_stopped,
    process_state,
)
from rlinf.scheduler.failure.reporter import FailureReporter, Frozen
from rlinf.scheduler.registry.server import RegistryServer
from rlinf.scheduler.registry.state import Death
from rlinf.scheduler.worker.spec import RunSpec, worker_file

_STATUS_SECONDS = 2.0
_STACKS_SECONDS = 3.0
_HEARD_SECONDS = 5.0
"""Within these the registry has noticed the end of a process."""
_LOOK_SECONDS = 0.02


class Inquest:
    """The driver's means to explain a failure.

    Args:
        run: what all processes share.
        server: the registry, whose lifelines answer even when a worker's own code is stuck.
        node_rank: node of the driver.
        node_of: the node of a worker, None if it is not known.
        examine_on: `examine_on(node, *files, pid)` reads what a worker left on another node.
        oom_kills: count of processes killed for memory when the run began, by node rank.
    """

    def __init__(
        self,
        run: RunSpec,
        server: RegistryServer,
        node_rank: int,
        node_of: Callable[[str], NodeInfo | None],
        examine_on: Callable[..., Remains],
        oom_kills: dict[int, int],
    ):
        self._run = run
        self._server = server
        self._node_rank = node_rank
        self._node_of = node_of
        self._examine_on = examine_on
        self._oom_kills = oom_kills
        self.folder = Path(run.log_dir)
        self.reporter = FailureReporter(server.state, self.folder, self.autopsy, self.frozen)

    def autopsy(self, name: str, message: str = "") -> WorkerDied:
        """Finds out how a worker died, or says what is known if its node does not answer."""
        self._await_registry(name)
        death = self._last_death(name)
        info = death.info if death is not None else self._server.state.workers.get(name)
        pid = info.pid if info is not None else None
        node = self._node_of(name)
        rank, address = (node.node_rank, node.node_ip) if node else (None, "")
        unclear = functools.partial(WorkerDied, name, node_rank=rank, node_ip=address, pid=pid)
        if death is None and info is not None and self._may_live(info):
            return unclear(cause=f"its connection was lost, but the process still runs; {message}")
        files = [worker_file(self._run.log_dir, name, suffix) for suffix in (".box", ".log")]
        try:
            near = rank is None or rank == self._node_rank
            remains = examine(*files, pid) if near else self._examine_on(node, *files, pid)
        except Exception as error:
            seen = message or (death.reason if death is not None else "")
            return unclear(cause=f"its node does not answer ({_gist(error)}); the run saw: {seen}")
        return diagnose(
            name,
            remains,
            node_rank=rank,
            node_ip=address,
            message=message,
            oom_kills_before=self._oom_kills.get(rank or 0, remains.oom_kills),
        )

    def with_facts(self, died: WorkerDied) -> WorkerDied:
        """A death as a peer saw it, with how it came about if the peer does not know."""
        if died.explained or type(died) is not WorkerDied:
            return died
        known = self.autopsy(died.worker, died.cause)
        known.__cause__ = died.__cause__
        return known

    def _last_death(self, name: str) -> Death | None:
        deaths = [d for d in self._server.deaths() if d.name == name and d.info is not None]
        return deaths[-1] if deaths else None

    def _await_registry(self, name: str) -> None:
        """Waits until the registry has heard of a death; whoever asks may be earlier.

        Without it, what an earlier process of this name has left would be taken for what is asked.
        """
        deadline = time.monotonic() + _HEARD_SECONDS
        while time.monotonic() < deadline:
            info = self._server.state.workers.get(name)
            if info is None:
                return
            if self._last_death(name) is not None and self._may_live(info):
                # Its next process is there already.
                return
            time.sleep(_LOOK_SECONDS)

    def _may_live(self, info: Any) -> bool:
        """Whether the process of a worker is there, as far as can be seen here."""
        if info.cluster_node_rank != self._node_rank:
            return True
        return process_state(info.pid) not in ("", "gone")

    def timeout(
        self, waiter: str, what: str, names: list[str], seconds: float | None
    ) -> WaitTimeout:
        """Says who did not answer and what each was doing; dumps all stacks beside the logs."""
        status = self._server.inquire("status", None, self.awake(names), timeout=_STATUS_SECONDS)
        folder = self.dump_stacks()
        holders = []
        for name in names:
            info = self._server.state.workers.get(name)
            where = f"node {info.cluster_node_rank}, pid {info.pid}" if info else "no process yet"
            holders.append(f"{name} ({where}): {status.get(name) or self._mute(info)}")
        advice = f"stacks of all workers are in {folder}"
        return WaitTimeout(what, waiter=waiter, seconds=seconds, holders=holders, advice=advice)

    def _mute(self, info: Any) -> str:
        """What can be said of a worker that does not answer its lifeline."""
        if info is None:
            return "has not registered"
        if info.cluster_node_rank != self._node_rank:
            return "does not answer"
        doing = examine(worker_file(self._run.log_dir, info.name, ".box"), "").activity
        state = process_state(info.pid) or "gone"
        return f"{doing}; the process is {state} and does not answer"

    def awake(self, names: list[str]) -> list[str]:
        """Those workers that may answer: not stopped by a signal, as far as can be seen here."""
        return [name for name in names if not self._is_frozen(self._server.state.workers.get(name))]

    def _is_frozen(self, info: Any) -> bool:
        if info is None or info.cluster_node_rank != self._node_rank:
            return False
        return is_stopped(info.pid)

    def frozen(self) -> list[Frozen]:
        """Workers on this node whose processes have been stopped by a signal."""
        found = []
        for name, info in list(self._server.state.workers.items()):
            if not self._is_frozen(info):
                continue
            doing = examine(worker_file(self._run.log_dir, name, ".box"), "").activity
            where = f"node {info.cluster_node_rank} ({info.node_ip}), pid {info.pid}"
            found.append(Frozen(name, where, info.pid, doing))
        return found

    def dump_stacks(self) -> Path:
        """Writes the Python stacks of all workers to files and returns their folder."""
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

    def report(self, error: BaseException) -> None:
        """Prints and saves the failure card, once, for the error that ends the run.

        Whatever goes wrong with the card, the error stays the one that is raised.
        """
        try:
            card = self.reporter.report(error)
        except Exception:
            traceback.print_exc()
            card = self.reporter.card
        if card is not None:
            print(card.render(), file=sys.stderr, flush=True)


def _gist(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}"
