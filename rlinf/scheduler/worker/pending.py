"""The group calls that this process waits for at the moment, for whoever shows them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol


class Call(Protocol):
    """A call on some ranks of a group; see `WorkerGroupFuncResult`."""

    group: Any
    method: str
    ranks: list[int]


Handles = Callable[[], Iterable[Call]]

_waits: dict[int, tuple[float, Handles]] = {}
_numbers = itertools.count()


@dataclass(frozen=True)
class PendingCall:
    """A call that somebody waits for.

    Attributes:
        group: name of the group.
        method: name of the method.
        ranks: ranks that it was called on.
        seconds: since when it is waited for.
    """

    group: str
    method: str
    ranks: tuple[int, ...]
    seconds: float

    @property
    def name(self) -> str:
        """As in traces and in errors."""
        return f"{self.group}.{self.method}()"


@contextmanager
def waiting(handles: Handles) -> Iterator[None]:
    """Note a wait for as long as it takes.

    Args:
        handles: tells the calls that have not ended; asked only by those who want to know.
    """
    number = next(_numbers)
    _waits[number] = time.monotonic(), handles
    try:
        yield
    finally:
        del _waits[number]


def pending_calls() -> list[PendingCall]:
    """Return what this process waits for now, each call once, the longest wait first."""
    now = time.monotonic()
    found: dict[int, PendingCall] = {}
    # A copy: other threads begin and end waits meanwhile.
    for began, handles in list(_waits.values()):
        for handle in handles():
            found.setdefault(
                id(handle),
                PendingCall(handle.group.name, handle.method, tuple(handle.ranks), now - began),
            )
    return sorted(found.values(), key=lambda call: -call.seconds)
