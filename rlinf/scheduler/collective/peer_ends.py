"""Which peers can no longer be reached, and why: they have died, left, or the connection broke.

A connection also ends when the process at its other end does, and that is often seen before the
registry has told of the death. So when a connection ends, the registry is asked to reach the peer:
if it answers, it lives, and the connection broke.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from rlinf.scheduler.errors import ClusterError, WaitTimeout, WorkerDied
from rlinf.scheduler.failure.autopsy import diagnose
from rlinf.scheduler.failure.blackbox import examine
from rlinf.scheduler.net.doorbell import interruptible
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.registry.state import Death
from rlinf.scheduler.worker.spec import RunSpec, worker_file

_ANSWER_SECONDS = 20.0
"""How long a peer may take to tell the registry that it lives."""


class End(NamedTuple):
    """Why a peer can no longer be reached, and its life; "" if that is not known."""

    error: BaseException
    life: str


class PeerLeft(WorkerDied):
    """A peer has ended on purpose."""


class PeerEnds:
    """The ends of peers that are known, and those in doubt.

    Args:
        registry: tells whether a peer lives.
        on_break: `on_break(peer, life, reason, confirmed)`, called from a thread of its own if a
            connection ended and the peer did not; `confirmed` is False if the peer did not answer.
    """

    def __init__(
        self, registry: RegistryClient, on_break: Callable[[str, str, str, bool], None]
    ) -> None:
        self._registry = registry
        self._on_break = on_break
        self._changed = threading.Condition()
        self._ended: dict[str, End] = {}
        self._doubts: dict[str, int] = {}
        self._waiting: dict[str, list[Callable[[BaseException], None]]] = {}

    def get(self, peer: str) -> End | None:
        """Return why a peer cannot be reached; None while it can, as far as is known."""
        return self._ended.get(peer)

    def record(self, peer: str, end: End) -> None:
        """Record an end and tell those who wait for the reason of a loss."""
        with self._changed:
            self._ended[peer] = end
            callbacks = self._waiting.pop(peer, [])
        for callback in callbacks:
            callback(end.error)

    def revive(self, peer: str, life: str) -> None:
        """Forget the end of another process that had the name of a peer that lives."""
        with self._changed:
            end = self._ended.get(peer)
            if end is not None and end.life != life:
                del self._ended[peer]

    def when_known(self, peer: str, callback: Callable[[BaseException], None]) -> None:
        """Call `callback(error)` when the end of a peer is known; at once if it is."""
        with self._changed:
            end = self._ended.get(peer)
            if end is None:
                self._waiting.setdefault(peer, []).append(callback)
                return
        callback(end.error)

    def doubt(self, peer: str, life: str, reason: str) -> None:
        """Find out, in a thread, whether a peer lives after a connection to it has ended."""
        with self._changed:
            self._doubts[peer] = self._doubts.get(peer, 0) + 1
        threading.Thread(
            target=self._examine, args=(peer, life, reason), name="rlinf-peer", daemon=True
        ).start()

    def settle(self, peer: str) -> None:
        """Wait until it is known whether a peer can be reached; not for the I/O thread."""
        if peer in self._doubts:
            with self._changed:
                interruptible(self._changed.wait_for, lambda: peer not in self._doubts)

    def _examine(self, peer: str, life: str, reason: str) -> None:
        try:
            lives = self._registry.ask("responds", worker=peer, life=life, timeout=_ANSWER_SECONDS)
            if lives:
                self._on_break(peer, life, reason, True)
        except (WaitTimeout, ClusterError) as error:
            self._on_break(peer, life, f"{reason}; {error}", False)
        finally:
            with self._changed:
                self._doubts[peer] -= 1
                if not self._doubts[peer]:
                    del self._doubts[peer]
                self._changed.notify_all()


def explain(death: Death, run: RunSpec, node_rank: int, oom_kills: int) -> WorkerDied:
    """Build the error for a death, with what the worker left if that was on this node.

    Args:
        death: what the registry says of it.
        run: what all processes share.
        node_rank: node of this process.
        oom_kills: its count of processes killed for memory when this process began.
    """
    info = death.info
    if info is None:
        return WorkerDied(death.name, cause=death.reason)
    if info.cluster_node_rank != node_rank:
        return WorkerDied(
            death.name,
            node_rank=info.cluster_node_rank,
            node_ip=info.node_ip,
            pid=info.pid,
            cause=death.reason,
        )
    files = [worker_file(run.log_dir, death.name, suffix) for suffix in (".box", ".log")]
    return diagnose(
        death.name,
        examine(*files, info.pid),
        node_rank=info.cluster_node_rank,
        node_ip=info.node_ip,
        message=death.reason,
        oom_kills_before=oom_kills,
    )
