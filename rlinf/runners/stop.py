"""How a run takes Ctrl-C, SIGTERM and SIGHUP: it ends its step, saves and stops; twice, at once."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from types import FrameType
from typing import Any

from rlinf.scheduler.net.interrupts import interrupt

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunStopped(KeyboardInterrupt):
    """The user, or a batch system, has stopped the run.

    Attributes:
        signum: the signal.
        exit_code: what the program leaves with.
    """

    def __init__(self, signum: int):
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """The exit code that a shell gives to a program which the signal has ended."""
        return 128 + self.signum


def is_stop(error: BaseException) -> bool:
    """Return whether an exception ends a run because of one of the signals, not of a failure."""
    if isinstance(error, SystemExit):
        return error.code in [128 + signum for signum in SIGNALS]
    return isinstance(error, KeyboardInterrupt)


class StopSignals:
    """Takes the signals while its block runs; in the main thread, elsewhere it does nothing.

    Attributes:
        requested: the signal that asks for a stop after this step; None while there is none.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            # What is ignored stays so: under nohup the end of the terminal ends nothing.
            taken = [signum for signum in SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]
            self._before = {signum: signal.signal(signum, self._on_signal) for signum in taken}
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def request(self, signum: int) -> None:
        """Ask for a stop after this step, as a signal does."""
        self.requested = self.requested or signum

    def check(self) -> None:
        """Raise `RunStopped` if a stop was asked for."""
        if self.requested is not None:
            raise RunStopped(self.requested)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            interrupt(RunStopped(signum), signum)
            return
        self.requested = signum
        again = "; Ctrl-C again stops at once" if signum == signal.SIGINT else ""
        # The terminal may be gone, which is what SIGHUP says.
        with contextlib.suppress(OSError):
            name = signal.Signals(signum).name
            print(f"\n{name}: stopping after this step{again}", file=sys.stderr, flush=True)
