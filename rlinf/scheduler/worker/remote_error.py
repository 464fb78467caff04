"""Brings a worker's exception to the caller: same type, remote traceback attached."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from rlinf.scheduler.errors import RemoteTraceback, WorkerException


class WorkerRaised(Exception):
    """Envelope of an exception on its way from a worker to the caller.

    Attributes:
        worker: who raised it.
        method: in which method.
        type_name: name of the exception's type.
        message: its text.
        traceback_text: its traceback in the worker.
        pickled: the exception itself, None if it cannot be pickled.
    """

    def __init__(
        self,
        worker: str,
        method: str,
        type_name: str,
        message: str,
        traceback_text: str,
        pickled: bytes | None,
    ):
        super().__init__(worker, method, type_name, message, traceback_text, pickled)
        self.worker = worker
        self.method = method
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text
        self.pickled = pickled

    def __str__(self) -> str:
        return f"{self.worker} raised {self.type_name} in {self.method}: {self.message}"

    def unpack(self) -> BaseException:
        """The original exception, its traceback in the worker as its cause."""
        error: BaseException
        try:
            error = _load(self.pickled) if self.pickled is not None else self._stand_in()
        except Exception:
            error = self._stand_in()
        error.__cause__ = RemoteTraceback(self.traceback_text)
        if hasattr(error, "add_note"):
            error.add_note(f"raised by worker {self.worker} in {self.method}()")
        return error

    def _stand_in(self) -> WorkerException:
        return WorkerException(f"{self.type_name}: {self.message}")


def pack(error: BaseException, worker: str, method: str) -> WorkerRaised:
    """Puts an exception into its envelope (in the worker)."""
    text = "".join(traceback.format_exception(type(error), error, _trim(error.__traceback__)))
    return WorkerRaised(worker, method, type(error).__qualname__, str(error), text, _dump(error))


def _trim(trace: Any) -> Any:
    """Leaves the frames of the host out: the traceback begins in the user's method."""
    user = trace
    frame = trace
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.endswith("scheduler/worker/host.py"):
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
