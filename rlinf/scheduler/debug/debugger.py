"""pdb for the processes of a run; that of a worker talks at the driver's terminal."""

from __future__ import annotations

import os
import pdb
import sys
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from rlinf.scheduler.debug.console import SERVICE
from rlinf.scheduler.registry.client import RegistryClient

_FOR_EVER = 1e9
_OWN_MODULES = ["rlinf.scheduler.*", "ray.*", "threading", "concurrent.futures.*", "asyncio.*"]
"""Code between a call and the user's method, which nobody wants to step through."""
_OF_RAY = "ray.util."
"""What Ray lets PYTHONBREAKPOINT begin with, whatever the user has set."""


def install(hook: Callable[..., None]) -> None:
    """Let `breakpoint()` call a hook, unless the user has chosen another debugger."""
    chosen = os.environ.get("PYTHONBREAKPOINT", "")
    if not chosen or chosen.startswith(_OF_RAY):
        sys.breakpointhook = hook


class WorkerDebugger:
    """Debugs a worker from the driver's terminal.

    Args:
        registry: the worker's connection to the driver.
    """

    def __init__(self, registry: RegistryClient):
        self._registry = registry

    def breakpoint(self, *, header: str | None = None) -> None:
        """Stop where `breakpoint()` was called."""
        debugger = _RemotePdb(self._registry)
        if header is not None:
            debugger.message(header)
        frame = sys._getframe(1)
        debugger.message(f"at {frame.f_code.co_filename}:{frame.f_lineno}, process {os.getpid()}")
        debugger.set_trace(frame)

    def post_mortem(self, error: BaseException, trace: TracebackType | None) -> None:
        """Look around where an exception was raised.

        Args:
            error: the exception.
            trace: its traceback, from the user's method on.
        """
        debugger = _RemotePdb(self._registry)
        text = "".join(traceback.format_exception(type(error), error, trace))
        debugger.message(f"{text.rstrip()}\n(post-mortem: q goes on with the exception)")
        debugger.reset()
        debugger.interaction(None, trace)


class _RemotePdb(pdb.Pdb):
    """pdb whose terminal is the driver's."""

    def __init__(self, registry: RegistryClient):
        self._terminal = _Terminal(registry)
        super().__init__(
            stdin=self._terminal, stdout=self._terminal, nosigint=True, skip=_OWN_MODULES
        )
        self._leaves = False

    def set_continue(self) -> None:
        """Go on, and leave the terminal to others."""
        self._leaves = True
        super().set_continue()

    def set_quit(self) -> None:
        """Give up, and leave the terminal to others."""
        self._leaves = True
        super().set_quit()

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        """Talk to the user at the driver's terminal."""
        self._leaves = False
        try:
            super().interaction(frame, traceback)
        finally:
            self._terminal.end(self._leaves)


class _Terminal:
    """The driver's terminal, as a pair of standard streams."""

    encoding = "utf-8"

    def __init__(self, registry: RegistryClient):
        self._registry = registry
        self._text = ""

    def write(self, text: str) -> int:
        self._text += text
        return len(text)

    def flush(self) -> None:
        pass

    def readline(self) -> str:
        return self._talk(reads=True)

    def end(self, leaves: bool) -> None:
        """Show what is left to show; one who only steps on comes back soon."""
        self._talk(ends=True, leaves=leaves)

    def _talk(self, **wish: bool) -> str:
        text, self._text = self._text, ""
        kwargs = {"worker": self._registry.name, "text": text, **wish}
        return self._registry.ask("service", service=SERVICE, kwargs=kwargs, timeout=_FOR_EVER)


class DriverDebugger:
    """Debugs the driver itself, and workers that live in its process.

    The deadlines of the run stand still meanwhile.

    Args:
        pause: stops the deadlines of the run, or lets them go on.
    """

    def __init__(self, pause: Callable[[bool], None]):
        self._pause = pause

    def breakpoint(self, *, header: str | None = None) -> None:
        """Stop where `breakpoint()` was called."""
        debugger = _LocalPdb(self._pause)
        if header is not None:
            debugger.message(header)
        debugger.set_trace(sys._getframe(1))

    def post_mortem(self, error: BaseException, trace: TracebackType | None = None) -> None:
        """Look around where an exception was raised; the workers still live.

        Args:
            error: the exception.
            trace: the part of its traceback to look at; all by default.
        """
        traceback.print_exception(type(error), error, trace or error.__traceback__)
        debugger = _LocalPdb(self._pause)
        debugger.message("(post-mortem: q goes on with the exception)")
        debugger.reset()
        debugger.interaction(None, trace or error.__traceback__)


class _LocalPdb(pdb.Pdb):
    """pdb in the driver."""

    def __init__(self, pause: Callable[[bool], None]):
        super().__init__(nosigint=True)
        self._pause = pause

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:
        """Talk to the user while the deadlines stand still."""
        self._pause(True)
        try:
            super().interaction(frame, traceback)
        finally:
            self._pause(False)
