"""Errors that the scheduler raises to its users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf.scheduler.events import Raised


class SchedulerError(RuntimeError):
    """Base class of what the scheduler itself reports.

    Attributes:
        may_follow_from_lost_peer: whether the end of another process may be the reason.
    """

    may_follow_from_lost_peer = False


class ClusterError(SchedulerError):
    """The cluster cannot be started, joined or used as described."""


class WaitTimeout(SchedulerError, TimeoutError):
    """A named wait passed its deadline.

    Attributes:
        what: what was waited for, in words.
        waiter: who waited.
        seconds: the deadline.
        holders: those who had not answered, each with what it was doing.
    """

    def __init__(
        self,
        what: str,
        *,
        waiter: str = "driver",
        seconds: float | None = None,
        holders: list[str] | None = None,
        advice: str = "",
    ):
        self.what = what
        self.waiter = waiter
        self.seconds = seconds
        self.holders = list(holders or [])
        self.advice = advice
        lines = [
            f"{waiter} waited {seconds:g} s for {what}"
            if seconds
            else f"{waiter} waited for {what}"
        ]
        lines += [f"  still missing: {holder}" for holder in self.holders]
        if advice:
            lines.append(f"  {advice}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        state = {
            "waiter": self.waiter,
            "seconds": self.seconds,
            "holders": self.holders,
            "advice": self.advice,
        }
        return _rebuild, (type(self), self.what, state)


class PeerLost(SchedulerError):
    """Another process of the run can no longer be reached: it ended, or the connection broke."""

    may_follow_from_lost_peer = True


class ConnectionBroken(PeerLost):
    """A connection between two processes ended although neither of them did.

    Messages that were on the way are lost. Nothing more passes between the two processes until one
    of them is restarted, so no later message can be taken for a lost one.

    Attributes:
        here: process that says so.
        peer: process at the other end.
        reason: what was seen of the connection.
        confirmed: whether the peer is known to live; otherwise its end may be the reason.
    """

    def __init__(self, here: str, *, peer: str, reason: str, confirmed: bool = False):
        self.here = here
        self.peer = peer
        self.reason = reason
        self.confirmed = confirmed
        # Between two processes that live, the network is the reason.
        self.may_follow_from_lost_peer = not confirmed
        state = "both processes live" if confirmed else "whether the other one lives is not known"
        super().__init__(
            f"the connection between {here} and {peer} broke ({reason}); {state}. Messages that "
            "were on the way are lost, and nothing more passes between the two until one of them "
            "is restarted: look at the network between their nodes"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"peer": self.peer, "reason": self.reason, "confirmed": self.confirmed}
        return _rebuild, (type(self), self.here, state)


class WorkerDied(PeerLost):
    """A worker process ended while something still needed it.

    Attributes:
        worker: address of the worker, `group:rank`.
        group: name of its group.
        rank: rank in the group.
        node_rank: rank of its node in the cluster.
        pid: process id on that node.
        signal: name of the signal that ended it, if one did.
        exit_code: exit code, if it left with one.
        activity: what it was doing.
        cause: likely cause in words.
        log_tail: the last lines that it logged.
    """

    def __init__(
        self,
        worker: str,
        *,
        node_rank: int | None = None,
        node_ip: str = "",
        pid: int | None = None,
        signal: str | None = None,
        exit_code: int | None = None,
        activity: str = "",
        cause: str = "",
        log_tail: list[str] | None = None,
    ):
        self.worker = worker
        self.group, _, rank = worker.rpartition(":")
        self.rank = int(rank) if rank.isdigit() else None
        self.node_rank = node_rank
        self.node_ip = node_ip
        self.pid = pid
        self.signal = signal
        self.exit_code = exit_code
        self.activity = activity
        self.cause = cause
        self.log_tail = list(log_tail or [])
        super().__init__(self._text())

    @property
    def explained(self) -> bool:
        """Whether it says how a process ended, and not only that one has gone."""
        return self.pid is not None and (self.signal is not None or self.exit_code is not None)

    @property
    def how(self) -> str:
        """How the process ended, in a few words."""
        if self.signal:
            return f"killed by {self.signal}"
        if self.exit_code is not None:
            return f"left with exit code {self.exit_code}"
        return "ended"

    def _text(self) -> str:
        lines = [
            f"worker {self.worker} (node {self.node_rank}, pid {self.pid}) {self.how}"
            + (f" while {self.activity}" if self.activity else "")
        ]
        if self.cause:
            lines.append(f"  likely cause: {self.cause}")
        if self.log_tail:
            lines.append("  its last log lines:")
            lines += [f"    {line}" for line in self.log_tail]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("node_rank", "node_ip", "pid", "signal", "exit_code", "activity", "cause")
        state = {name: getattr(self, name) for name in names}
        return _rebuild, (type(self), self.worker, state | {"log_tail": self.log_tail})


class CallCancelled(SchedulerError):
    """A group call was cancelled by its caller."""


class RemoteTraceback(Exception):
    """Carries a worker's traceback as the cause of the exception raised in the driver.

    Attributes:
        text: the traceback.
        raised: the worker's report of it.
    """

    def __init__(self, text: str, raised: Raised | None = None):
        super().__init__(text, raised)
        self.text = text
        self.raised = raised

    def __str__(self) -> str:
        return f"\n{self.text}"


class WorkerException(SchedulerError):
    """Stands in for a worker's exception whose own type cannot be brought to the driver."""


def _rebuild(cls: type, first: Any, kwargs: dict[str, Any]) -> Any:
    return cls(first, **kwargs)
