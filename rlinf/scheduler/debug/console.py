"""The driver's terminal, lent to one worker at a time that is in the debugger."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

SERVICE = "debugger"
"""Name of the driver's service that workers in the debugger talk to."""
_STEP_SECONDS = 1.0
"""A worker that steps on is back at its prompt within these; till then the terminal is its own."""


class DebugConsole:
    """Shows what debuggers of workers print, and reads what the user types.

    Deadlines of the whole run stand still while a worker talks to the user.

    Args:
        pause: stops the deadlines of the run, or lets them go on.
    """

    def __init__(self, pause: Callable[[bool], None]):
        self._pause = pause
        self._turn = threading.Condition()
        self._holder: str | None = None
        self._talks = False
        self._ended = 0.0

    def serve(
        self, worker: str, text: str, reads: bool = False, ends: bool = False, leaves: bool = False
    ) -> str:
        """Show a worker's text; return the line that the user types, if the worker wants one.

        Args:
            worker: who speaks.
            text: what its debugger prints; the last line is the prompt if one is to be read.
            reads: whether a line is wanted.
            ends: whether the worker goes on with its work, if only for a step.
            leaves: whether it has left its debugger.

        Returns:
            The line with its end; "" at the end of the input, and if none is wanted.

        Raises:
            RuntimeError: there is nothing to read from.
        """
        self._take_turn(worker)
        try:
            return self._talk(worker, text, reads)
        finally:
            if ends:
                self.end_turn(worker, leaves)

    def _talk(self, worker: str, text: str, reads: bool) -> str:
        said, _, prompt = text.rpartition("\n") if reads else (text, "", "")
        if said:
            print(said.rstrip("\n"), flush=True)
        if not reads:
            return ""
        if sys.stdin is None or sys.stdin.closed:
            raise RuntimeError(
                f"{worker} is in the debugger, but the driver has no standard input to read "
                "commands from; start the run in a terminal"
            )
        try:
            return input(prompt) + "\n"
        except EOFError:
            return ""

    def _take_turn(self, worker: str) -> None:
        """Wait until the terminal is free, or the worker's already."""
        with self._turn:
            while self._holder not in (None, worker):
                left = self._ended + _STEP_SECONDS - time.monotonic()
                if not self._talks and left <= 0:
                    break
                self._turn.wait(None if self._talks else left)
            if self._holder != worker:
                print(f"\n--- {worker} is in the debugger ---", flush=True)
            self._holder = worker
            if not self._talks:
                self._talks = True
                self._pause(True)

    def end_turn(self, worker: str, leaves: bool = True) -> None:
        """Let deadlines go on; give the terminal to the next worker if this one leaves.

        Args:
            worker: who has had the terminal; nothing happens if it has not.
            leaves: whether it has left its debugger, or has died there.
        """
        with self._turn:
            if self._holder != worker:
                return
            self._ended = time.monotonic()
            if leaves:
                self._holder = None
            if self._talks:
                self._talks = False
                self._pause(False)
            self._turn.notify_all()
