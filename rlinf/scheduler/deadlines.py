"""Deadlines of waits, by a clock that stands still while somebody debugs the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable

_PAUSED_SECONDS = 0.2
"""How long a wait that is over goes on, again and again, while the clock stands."""


class _Clock:
    """Seconds that count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped_at: float | None = None
        self._lost = 0.0

    def now(self) -> float:
        with self._lock:
            end = time.monotonic() if self._stopped_at is None else self._stopped_at
            return end - self._lost

    def stands(self) -> bool:
        return self._stopped_at is not None

    def set_paused(self, paused: bool) -> None:
        with self._lock:
            if paused and self._stopped_at is None:
                self._stopped_at = time.monotonic()
            elif not paused and self._stopped_at is not None:
                self._lost += time.monotonic() - self._stopped_at
                self._stopped_at = None


_clock = _Clock()


def set_paused(paused: bool) -> None:
    """Stop the clock of this process's deadlines, or let it go on."""
    _clock.set_paused(paused)


def are_paused() -> bool:
    """Return whether the clock stands."""
    return _clock.stands()


class Deadline:
    """The end of a wait.

    Args:
        seconds: how long the wait may take from now on; None is for ever.
    """

    def __init__(self, seconds: float | None):
        self.seconds = seconds
        self._end = None if seconds is None else _clock.now() + seconds

    def left(self) -> float | None:
        """Return the seconds to wait before looking again, at least 0; None is for ever."""
        if self._end is None:
            return None
        left = max(0.0, self._end - _clock.now())
        return max(left, _PAUSED_SECONDS) if _clock.stands() else left

    def passed(self) -> bool:
        """Return whether it has passed."""
        return self._end is not None and not _clock.stands() and _clock.now() >= self._end


def wait_within(seconds: float | None, wait: Callable[[float | None], bool]) -> bool:
    """Wait until something happens or a deadline passes.

    Args:
        seconds: the deadline; None is none.
        wait: waits that long at most and returns whether it has happened.

    Returns:
        Whether it has happened.
    """
    deadline = Deadline(seconds)
    while not wait(deadline.left()):
        if deadline.passed():
            return False
    return True


async def await_within(
    seconds: float | None, wait: Callable[[float | None], Awaitable[bool]]
) -> bool:
    """Do as `wait_within`, in a coroutine."""
    deadline = Deadline(seconds)
    while not await wait(deadline.left()):
        if deadline.passed():
            return False
    return True
