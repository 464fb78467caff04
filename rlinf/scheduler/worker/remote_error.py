"""Brings a worker's exception to the caller: same type, remote traceback attached."""

from __future__ import annotations

import pickle
import time
import traceback
from typing import Any

from rlinf.scheduler.errors import CallCancelled, RemoteTraceback, WorkerException
from rlinf.scheduler.events import Raised
from rlinf.scheduler.failure.lost_peer import may_follow_from_lost_peer

_LONGEST_MESSAGE = 4000
_HOST = {("host.py", name) for name in ("_boot", "_guard", "_run", "run_coroutine")} | {
    ("cancelling.py", "run")
}
"""The functions that call methods of a worker."""


class WorkerRaised(Exception):
    """Envelope of an exception on its way from a worker to the caller.

    Attributes:
        report: who raised it, where and when, as the registry is told; it may be here sooner.
        pickled: the exception itself, None if it cannot be pickled.
    """

    def __init__(self, report: Raised, pickled: bytes | None):
        super().__init__(report, pickled)
        self.report = report
        self.pickled = pickled

    def __str__(self) -> str:
        report = self.report
        return f"{report.name} raised {report.type} in {report.method}: {report.message}"

    def unpack(self) -> BaseException:
        """Return the original exception, its traceback in the worker as its cause."""
        error: BaseException
        try:
            error = _load(self.pickled) if self.pickled is not None else self._stand_in()
        except Exception:
            error = self._stand_in()
        error.__cause__ = RemoteTraceback(self.report.traceback, self.report)
        if hasattr(error, "add_note"):
            error.add_note(f"raised by worker {self.report.name} in {self.report.method}()")
        return error

    def _stand_in(self) -> WorkerException:
        return WorkerException(f"{self.report.type}: {self.report.message}")


def pack(error: BaseException, worker: str, method: str) -> WorkerRaised:
    """Put an exception into its envelope (in the worker)."""
    text = "".join(traceback.format_exception(type(error), error, user_part(error.__traceback__)))
    return WorkerRaised(report_of(error, worker, method, text), _dump(error))


def is_own_fault(error: BaseException) -> bool:
    """Return whether an exception is worth looking at where it was raised (in the worker)."""
    return not isinstance(error, CallCancelled) and not may_follow_from_lost_peer(error)


def report_of(error: BaseException, worker: str, method: str, text: str) -> Raised:
    """Return who raised an exception, where and when (in the worker)."""
    kind, said = type(error).__qualname__, str(error)[:_LONGEST_MESSAGE]
    echo = may_follow_from_lost_peer(error)
    return Raised(worker, method, kind, said, text, time.time(), echo)


def user_part(trace: Any) -> Any:
    """Leave the frames of the host out: the traceback begins in the user's method."""
    user = trace
    frame = trace
    while frame is not None:
        code = frame.tb_frame.f_code
        if (code.co_filename.rpartition("rlinf/scheduler/worker/")[2], code.co_name) in _HOST:
            user = frame.tb_next
        frame = frame.tb_next
    return trace if user is None else user


def _dump(error: BaseException) -> bytes | None:
    import cloudpickle

    state = {k: v for k, v in error.__dict__.items() if k != "__notes__"}
    try:
        data = cloudpickle.dumps(("whole", error))
        _load(data)
        return data
    except Exception:
        pass
    # Constructors that take other arguments than `args` break pickling; build such errors by hand.
    for attributes in (state, {}):
        try:
            data = cloudpickle.dumps(("parts", type(error), error.args, attributes))
            _load(data)
            return data
        except Exception:
            continue
    return None


def _load(data: bytes) -> BaseException:
    kind, *rest = pickle.loads(data)
    if kind == "whole":
        if not isinstance(rest[0], BaseException):
            raise TypeError("not an exception")
        return rest[0]
    cls, args, attributes = rest
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error
