"""Cancelling calls: an interruption reaches the call that it is meant for, once, or nobody."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.errors import CallCancelled
from rlinf.scheduler.net import interrupts

CANCEL_SIGNAL = signal.SIGUSR1
_MOST_ASKED = 4096
"""Requests that are kept for calls which have not begun; those that never do are forgotten."""


class CallCanceller:
    """Calls that were asked to stop, and the running ones that can be.

    A call that runs in the main thread is interrupted by a signal, which also ends a blocking
    system call; one in another thread by an exception that the interpreter raises there.
    Both arrive a moment after they were sent. When a call ends, what has not arrived is taken back:
    it must not strike the next call of the thread, nor whatever the thread does in between.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, None] = {}
        self._running: dict[str, _Running] = {}

    def request(self, call: str) -> bool:
        """Ask a call to stop, now or when it is about to begin; False if it does not run."""
        with self._lock:
            self._asked[call] = None
            if len(self._asked) > _MOST_ASKED:
                del self._asked[next(iter(self._asked))]
            running = self._running.get(call)
            if running is not None:
                # With the lock held: it cannot end meanwhile.
                running.interrupt()
        return running is not None

    def asked(self, call: str) -> bool:
        """Return whether a call was asked to stop."""
        # Without the lock: the handler of a signal may be here while its thread holds it.
        return call in self._asked

    def run(self, call: str, method: str, function: Callable[[], Any]) -> Any:
        """Run a call in this thread.

        Args:
            call: its id.
            method: its name.
            function: what it does.

        Raises:
            CallCancelled: it was cancelled, before it began or while it ran.
        """
        try:
            self.begin(call, method, _Thread())
            return self.checked(call, method, function())
        finally:
            # An interruption may strike here as well, but it comes only once.
            try:
                self.end(call)
            finally:
                self.end(call)

    def checked(self, call: str, method: str, value: Any) -> Any:
        """Return what a call returns.

        One that has seen that it was cancelled, and so ended, has not.
        """
        if self.asked(call):
            raise CallCancelled(f"{method}() was cancelled")
        return value

    def begin(self, call: str, method: str, running: _Running) -> None:
        """Note that a call runs; raise CallCancelled if it must not begin."""
        with self._lock:
            if call in self._asked:
                del self._asked[call]
                raise CallCancelled(f"{method}() was cancelled before it began")
            self._running[call] = running

    def end(self, call: str) -> None:
        """Note that a call has ended; what was sent to it does not arrive any more."""
        with self._lock:
            running = self._running.pop(call, None)
            self._asked.pop(call, None)
            if running is not None:
                running.take_back()

    def on_signal(self, signum: int, frame: Any) -> None:
        """Interrupt the call of the main thread, if it was asked to stop; takes no lock."""
        for call, running in list(self._running.items()):
            if isinstance(running, _Thread) and running.is_main and call in self._asked:
                running.strike()


class _Running:
    """A call that runs and can be interrupted."""

    def interrupt(self) -> None:
        """Interrupt it, once."""
        raise NotImplementedError

    def take_back(self) -> None:
        """See to it that an interruption which has not arrived never does."""


class _Thread(_Running):
    """A call that occupies the current thread."""

    def __init__(self) -> None:
        self._thread = threading.current_thread()
        self._sent = self._struck = False

    @property
    def is_main(self) -> bool:
        """Whether a signal reaches it."""
        return self._thread is threading.main_thread()

    def interrupt(self) -> None:
        if self._sent:
            return
        self._sent = True
        if self.is_main:
            signal.pthread_kill(self._thread.ident, CANCEL_SIGNAL)  # type: ignore[arg-type]
        else:
            _raise_in(self._thread, CallCancelled)

    def strike(self) -> None:
        """Raise CallCancelled, now or as soon as that does no harm; once."""
        if self._struck:
            return
        try:
            interrupts.interrupt(CallCancelled("the call was cancelled"), CANCEL_SIGNAL)
        except CallCancelled:
            self._struck = True
            raise

    def take_back(self) -> None:
        if self._sent and not self.is_main:
            _raise_in(self._thread, None)


class Coroutine(_Running):
    """A call that runs on an event loop.

    Args:
        cancel: cancels its task, from any thread.
    """

    def __init__(self, cancel: Callable[[], Any]):
        self._cancel = cancel

    def interrupt(self) -> None:
        """Cancel it."""
        self._cancel()


def _raise_in(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Let a thread raise at its next instruction; None takes back what it has not raised yet."""
    target = ctypes.c_ulong(thread.ident or 0)
    argument = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(target, argument)
