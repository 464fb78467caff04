"""What may go wrong in a run, as the registry records it."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.scheduler.address import WorkerInfo


@dataclass
class Death:
    """A process that ended without saying goodbye.

    Attributes:
        name: name of the member.
        info: what was known of it; None for members that are not workers.
        time: when the registry noticed, in seconds since the epoch.
        order: 0 for the first death of the run.
        reason: what the registry saw.
        unreachable: whether its host is not heard any more, so that nothing is known of its end.
    """

    name: str
    info: WorkerInfo | None
    time: float
    order: int
    reason: str
    unreachable: bool = False


@dataclass
class Raised:
    """An exception that a worker's method raised, as the worker reports it.

    Attributes:
        name: name of the worker.
        method: the method.
        type: type of the exception.
        message: its text.
        traceback: its traceback in the worker.
        time: when it was raised, in seconds since the epoch.
        may_follow_from_lost_peer: whether the end of another process may be the reason.
    """

    name: str
    method: str
    type: str
    message: str
    traceback: str
    time: float
    may_follow_from_lost_peer: bool = False
