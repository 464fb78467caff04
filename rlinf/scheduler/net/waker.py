"""How the main thread waits for a socket and can be woken by other threads."""

from __future__ import annotations

import os
import select
import threading

from rlinf.scheduler.net.interrupts import handle_interrupt_key, interruptible

_MOST_SECONDS = 3600.0


class Waker:
    """Waits for a socket or for `wake`; only the main thread has one.

    Attributes:
        thread: id of the thread that it wakes.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)

    def wake(self) -> None:
        """Wake the thread."""
        os.eventfd_write(self._event, 1)

    def wait(self, descriptor: int, seconds: float | None) -> bool:
        """Wait, at most an hour; True if the socket has something to read, or has ended."""
        limit = None if seconds is None else min(seconds, _MOST_SECONDS) * 1000
        self._poll.register(descriptor, select.POLLIN)
        try:
            ready = interruptible(self._poll.poll, limit)
        finally:
            self._poll.unregister(descriptor)
        readable = False
        for ready_descriptor, _ in ready:
            if ready_descriptor == descriptor:
                readable = True
            else:
                os.eventfd_read(self._event)
        return readable


_waker: Waker | None = None


def of_main_thread() -> Waker:
    """Return the main thread's waker; called by that thread."""
    global _waker
    if _waker is None:
        _waker = Waker()
        handle_interrupt_key()
    return _waker


def _forget_waker() -> None:
    """Leave the waker to the parent: a forked child would take its wake-ups."""
    global _waker
    _waker = None


os.register_at_fork(after_in_child=_forget_waker)
