"""Tells exceptions that may only be the consequence of another process's end."""

from __future__ import annotations

import sys

from rlinf.scheduler.errors import SchedulerError


def may_follow_from_lost_peer(error: BaseException) -> bool:
    """Return whether an exception may be there only because another process has gone.

    Asked where the exception was raised: it looks at types and at where it comes from, which do not
    travel, and at the exceptions that it was raised from.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and not any(current is known for known in seen):
        if _is_of_lost_peer(current):
            return True
        seen.append(current)
        current = current.__cause__
    return False


def _is_of_lost_peer(error: BaseException) -> bool:
    if isinstance(error, SchedulerError):
        return error.may_follow_from_lost_peer
    if isinstance(error, ConnectionError):
        # One that was never there has not been lost.
        return not isinstance(error, ConnectionRefusedError)
    return isinstance(error, RuntimeError) and _is_of_collective(error)


def _is_of_collective(error: RuntimeError) -> bool:
    """Return whether torch.distributed raised an error; gloo has no type of its own for it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return False
    # A build of torch may have the module and nothing in it.
    if isinstance(error, getattr(distributed, "DistError", ())):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return module.split(".")[:2] == ["torch", "distributed"]
