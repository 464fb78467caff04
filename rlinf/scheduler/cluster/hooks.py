"""What happens when the driver's program ends, in whatever way."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.failure.card import FailureCard

_LEAVING: list[int] = []


class ExitHooks:
    """Shuts down on every exit path, tells of an uncaught exception, and keeps the exit code.

    Args:
        shutdown: ends the run; called at exit.
        fail: ends the run with the exception that nobody caught, and tells it.
        old_sigterm: handler of SIGTERM before Ray put its own in.
    """

    def __init__(
        self,
        shutdown: Callable[[], None],
        fail: Callable[[BaseException], None],
        old_sigterm: Any,
    ):
        self._pid = os.getpid()
        self._shutdown = shutdown
        self._old_excepthook = sys.excepthook
        self._old_sigterm = old_sigterm
        atexit.register(self._at_exit)

        def excepthook(kind: Any, error: BaseException, trace: Any) -> None:
            if os.getpid() == self._pid:
                fail(error)
            if not was_told(error):
                self._old_excepthook(kind, error, trace)

        self._excepthook = sys.excepthook = excepthook
        if _in_main_thread() and old_sigterm is signal.SIG_DFL:
            # In place of Ray's own handler, which changes the exit code.
            signal.signal(signal.SIGTERM, _leave_on_sigterm)

    def remove(self) -> None:
        """Put everything back."""
        atexit.unregister(self._at_exit)
        if sys.excepthook is self._excepthook:
            sys.excepthook = self._old_excepthook
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) is _leave_on_sigterm:
            signal.signal(signal.SIGTERM, self._old_sigterm)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            # The end of a forked child is not that of the run.
            return
        self._shutdown()
        if _LEAVING:
            # Ray turns the SystemExit of a handler into exit code 1; end as the signal would have.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def tell_last(card: FailureCard, error: BaseException) -> None:
    """Print the failure card of a run that has ended.

    If nobody catches the error, its traceback is not printed after the card, which names the file
    that has it.
    """
    print(card.render(), file=sys.stderr, flush=True)
    if not card.traceback:
        return
    error.told_by_failure_card = True  # type: ignore[attr-defined]
    if not getattr(sys.excepthook, "skips_told", False):
        sys.excepthook = _skip_told(sys.excepthook)


def was_told(error: BaseException) -> bool:
    """Return whether a failure card has told of an error, and where its traceback is."""
    return getattr(error, "told_by_failure_card", False)


def _skip_told(excepthook: Callable[..., Any]) -> Callable[..., Any]:
    def skip(kind: Any, error: BaseException, trace: Any) -> None:
        if not was_told(error):
            excepthook(kind, error, trace)

    skip.skips_told = True  # type: ignore[attr-defined]
    return skip


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _leave_on_sigterm(signum: int, frame: Any) -> None:
    # An exception unwinds `with` blocks and runs exit handlers; the default action does neither.
    _LEAVING.append(signum)
    sys.exit(128 + signum)
