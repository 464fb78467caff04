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
from rlinf.scheduler.events import Death
from rlinf.scheduler.failure.post_mortem import diagnose, read_post_mortem
from rlinf.scheduler.net.interrupts import interruptible
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.spec import RunSpec, worker_file

_ANSWER_SECONDS = 20.0
"""How long a peer may take to tell the registry that it lives."""

_SETTLE_SECONDS = 3 * _ANSWER_SECONDS
"""How long to wait until it is known whether a peer lives."""


class PeerLoss(NamedTuple):
    """Why a peer can no longer be reached, and its life; "" if that is not known."""

    error: BaseException
    life: str


class PeerLeft(WorkerDied):
    """A peer has ended on purpose."""


class PeerLosses:
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
        self._ended: dict[str, PeerLoss] = {}
        # By peer and life: those that are being examined, and who waits for the outcome.
        self._doubts: set[tuple[str, str]] = set()
        self._waiting: dict[tuple[str, str], list[Callable[[BaseException], None]]] = {}

    def get(self, peer: str) -> PeerLoss | None:
        """Return why a peer cannot be reached; None while it can, as far as is known."""
        return self._ended.get(peer)

    def error(self, peer: str) -> BaseException | None:
        """Return the error of `get`."""
        end = self._ended.get(peer)
        return None if end is None else end.error

    def knows(self, peer: str, life: str) -> bool:
        """Return whether it is known why a process that had the name of a peer is not reached."""
        end = self._ended.get(peer)
        return end is not None and end.life in ("", life)

    def record(self, peer: str, end: PeerLoss, first: bool = False) -> bool:
        """Record an end and tell those who wait for the reason of a loss.

        Args:
            peer: name of the peer.
            end: its end.
            first: do nothing if there is an end already.

        Returns:
            Whether it was recorded.
        """
        with self._changed:
            if first and peer in self._ended:
                return False
            self._ended[peer] = end
            places = [place for place in self._waiting if self._is_end_of(end, peer, *place)]
            callbacks = [callback for place in places for callback in self._waiting.pop(place)]
        for callback in callbacks:
            callback(end.error)
        return True

    @staticmethod
    def _is_end_of(end: PeerLoss, peer: str, name: str, life: str) -> bool:
        return name == peer and end.life in ("", life)

    def revive(self, peer: str, life: str) -> None:
        """Forget the end of another process that had the name of a peer that lives."""
        with self._changed:
            end = self._ended.get(peer)
            if end is not None and end.life != life:
                del self._ended[peer]

    def when_known(
        self, peer: str, life: str, reason: str, callback: Callable[[BaseException], None]
    ) -> None:
        """Call `callback(error)` when it is known why a connection ended; at once if it is."""
        with self._changed:
            end = self._ended.get(peer) if self.knows(peer, life) else None
            if end is None:
                self._waiting.setdefault((peer, life), []).append(callback)
        if end is None:
            # Its end may have been forgotten, since there is another one of the name.
            self.doubt(peer, life, reason)
        else:
            callback(end.error)

    def doubt(self, peer: str, life: str, reason: str) -> None:
        """Find out, in a thread, whether a peer lives after a connection to it has ended."""
        with self._changed:
            if (peer, life) in self._doubts:
                return
            self._doubts.add((peer, life))
        threading.Thread(
            target=self._examine, args=(peer, life, reason), name="rlinf-peer", daemon=True
        ).start()

    def settle(self, peer: str) -> None:
        """Wait until it is known whether a peer can be reached; not for the I/O thread.

        Raises:
            WaitTimeout: it was not known in time.
        """
        with self._changed:
            settled = interruptible(
                self._changed.wait_for,
                lambda: all(name != peer for name, _ in self._doubts),
                _SETTLE_SECONDS,
            )
        if not settled:
            what = f"word whether {peer} lives, after a connection to it has ended"
            raise WaitTimeout(what, waiter=self._registry.name, seconds=_SETTLE_SECONDS)

    def _examine(self, peer: str, life: str, reason: str) -> None:
        try:
            lives = self._registry.ask(
                "responds",
                worker=peer,
                life=life,
                timeout=_ANSWER_SECONDS,
                what=f"{peer} to answer the registry, after a connection to it has ended",
            )
            if lives:
                self._on_break(peer, life, reason, True)
        except (WaitTimeout, ClusterError) as error:
            self._on_break(peer, life, f"{reason}; {error}", False)
        finally:
            with self._changed:
                self._doubts.discard((peer, life))
                callbacks = self._waiting.pop((peer, life), [])
                end = self._ended.get(peer) if self.knows(peer, life) else None
                self._changed.notify_all()
            cause = f"the connection to it ended ({reason}), and it is not there any more"
            error = WorkerDied(peer, cause=cause) if end is None else end.error
            for callback in callbacks:
                callback(error)


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
    paths = [worker_file(run.log_dir, death.name, suffix) for suffix in (".record", ".log")]
    files = [str(run.on_node(path)) for path in paths]
    return diagnose(
        death.name,
        read_post_mortem(*files, info.pid),
        node_rank=info.cluster_node_rank,
        node_ip=info.node_ip,
        message=death.reason,
        oom_kills_before=oom_kills,
    )
