"""What happens when the driver's program ends, in whatever way."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

_LEAVING: list[int] = []


class ExitHooks:
    """Shuts down on every exit path, reports an uncaught exception, and keeps the exit code.

    Args:
        shutdown: ends the run; called at exit.
        report: told of the exception that nobody caught.
        old_sigterm: handler of SIGTERM before Ray put its own in.
    """

    def __init__(
        self,
        shutdown: Callable[[], None],
        report: Callable[[BaseException], None],
        old_sigterm: Any,
    ):
        self._pid = os.getpid()
        self._shutdown = shutdown
        self._old_excepthook = sys.excepthook
        self._old_sigterm = old_sigterm
        atexit.register(self._at_exit)

        def excepthook(kind: Any, error: BaseException, trace: Any) -> None:
            self._old_excepthook(kind, error, trace)
            if os.getpid() == self._pid:
                report(error)

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


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _leave_on_sigterm(signum: int, frame: Any) -> None:
    # An exception unwinds `with` blocks and runs exit handlers; the default action does neither.
    _LEAVING.append(signum)
    sys.exit(128 + signum)
