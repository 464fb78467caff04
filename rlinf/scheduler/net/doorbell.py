"""How the main thread waits: woken by a socket or a bell, interrupted where that does no harm.

A signal can raise between any two steps of the main thread, also where a message is half read or
half written. So `Doorbell.interrupt` lets it raise in the user's code, and in `interruptible`,
which is where the code that moves data waits; anywhere else the signal comes again a moment later.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

_MOST_SECONDS = 3600.0
_AGAIN_SECONDS = 0.005
_MAIN = threading.main_thread()

_GUARDED = (
    "rlinf.scheduler.net.",
    "rlinf.scheduler.collective.",
    "rlinf.scheduler.channel.",
    "rlinf.scheduler.registry.",
    "rlinf.scheduler.worker.comm",
    "rlinf.scheduler.worker.locks",
)
"""Modules that are not interrupted, nor what they call."""

T = TypeVar("T")


def interruptible(wait: Callable[..., T], *args: object) -> T:
    """Calls something that waits; the caller must be able to take an exception in its place."""
    return wait(*args)


def _signal_again(signum: int) -> None:
    time.sleep(_AGAIN_SECONDS)
    signal.pthread_kill(_MAIN.ident, signum)  # type: ignore[arg-type]


class Doorbell:
    """Waits for a socket or for `ring`; only the main thread has one.

    Attributes:
        thread: id of the thread that it wakes.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._event, select.POLLIN)

    def ring(self) -> None:
        """Wakes the thread."""
        os.eventfd_write(self._event, 1)

    def interrupt(
        self,
        error: BaseException,
        signum: int = signal.SIGUSR1,
        frame: FrameType | None = None,
    ) -> None:
        """Raises in this thread, now or as soon as that does no harm; for handlers of signals.

        Args:
            error: what to raise.
            signum: signal whose handler calls this; the handler is called again if it must wait.
            frame: where the signal came; by default where this is called.
        """
        frame = frame or sys._getframe(1)
        while frame is not None:
            if frame.f_code is interruptible.__code__:
                break
            if frame.f_globals.get("__name__", "").startswith(_GUARDED):
                # Not by `threading`, one of whose locks this thread may be holding.
                _thread.start_new_thread(_signal_again, (signum,))
                return
            frame = frame.f_back
        raise error

    def wait(self, descriptor: int, seconds: float | None) -> bool:
        """Waits, at most an hour; True if the socket has something to read, or has ended."""
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


_bell: Doorbell | None = None


def of_main_thread() -> Doorbell:
    """The main thread's bell; called by that thread."""
    global _bell
    if _bell is None:
        _bell = Doorbell()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _on_interrupt_key)
    return _bell


def _forget_bell() -> None:
    """Leaves the bell to the parent: a forked child would take its wake-ups."""
    global _bell
    _bell = None


os.register_at_fork(after_in_child=_forget_bell)


def _on_interrupt_key(signum: int, frame: FrameType | None) -> None:
    of_main_thread().interrupt(KeyboardInterrupt(), signum, frame)
