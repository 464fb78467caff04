"""Where a signal may raise in the main thread: in the user's code, and where our own code waits.

A signal handler runs between any two instructions of the main thread, also where a message is half
read or half written. Code that moves data is `shielded`: while it runs, `interrupt` raises nothing,
and the signal comes again when the shield is left. `interruptible` opens the shield for one wait.

Finalizers cannot raise: Python shows what they raise, and goes on. A signal that raised in one of
them comes again, until it raises where somebody can take it.
"""

from __future__ import annotations

import _thread
import functools
import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

_AGAIN_SECONDS = 0.005
_SIGNAL = "rlinf_signal"
"""Attribute of an exception that was raised for a signal."""
_MAIN = threading.main_thread()

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


class _MainThread:
    """State of the main thread; only that thread changes it.

    Attributes:
        shields: how many shielded functions it is in.
        pending: signal that came meanwhile, if any.
        show_unraisable: shows what else finalizers raise.
    """

    shields = 0
    pending: int | None = None
    show_unraisable: Callable[[Any], object] = staticmethod(sys.__unraisablehook__)


_main = _MainThread()


def shielded(function: F) -> F:
    """Decorate a function that must not be interrupted, nor what it calls."""

    @functools.wraps(function)
    def shielded_function(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != _MAIN.ident:
            return function(*args, **kwargs)
        outer = _main.shields
        try:
            _main.shields = outer + 1
            return function(*args, **kwargs)
        finally:
            _main.shields = outer
            if not outer and _main.pending is not None:
                signum, _main.pending = _main.pending, None
                _send_again(signum)

    return shielded_function  # type: ignore[return-value]


def shielded_methods(cls: C) -> C:
    """Shield all public methods of a class, except coroutines."""
    for name, member in vars(cls).copy().items():
        if name.startswith("_") and name not in ("__enter__", "__exit__", "__call__"):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            setattr(cls, name, type(member)(shielded(member.__func__)))
        elif inspect.isfunction(member) and not inspect.iscoroutinefunction(member):
            setattr(cls, name, shielded(member))
    return cls


around_waits: Callable[[], AbstractContextManager[None]] | None = None
"""What is done around each wait; nothing, unless the workers of a run take turns."""


def interruptible(wait: Callable[..., T], *args: Any) -> T:
    """Call something that waits; the caller must be able to take an exception in its place."""
    if around_waits is None:
        return _interruptible(wait, *args)
    with around_waits():
        return _interruptible(wait, *args)


def _interruptible(wait: Callable[..., T], *args: Any) -> T:
    if threading.get_ident() != _MAIN.ident:
        return wait(*args)
    shields = _main.shields
    try:
        _main.shields = 0
        if _main.pending is not None:
            signum, _main.pending = _main.pending, None
            signal.raise_signal(signum)
        return wait(*args)
    finally:
        _main.shields = shields


def interrupt(error: BaseException, signum: int) -> None:
    """Raise in the main thread if that does no harm, or have the signal sent again when it does.

    Args:
        error: what to raise.
        signum: the signal whose handler calls this.
    """
    if _main.shields:
        _main.pending = signum
        return
    setattr(error, _SIGNAL, signum)
    if sys.unraisablehook is not _on_unraisable:
        _main.show_unraisable, sys.unraisablehook = sys.unraisablehook, _on_unraisable
    raise error


def _send_again(signum: int) -> None:
    # Later, not now: what the shielded function returns must reach its caller, and a finalizer
    # cannot raise. Not by `threading`, one of whose locks this thread may be holding.
    _thread.start_new_thread(_send_later, (signum,))


def _send_later(signum: int) -> None:
    time.sleep(_AGAIN_SECONDS)
    signal.pthread_kill(_MAIN.ident, signum)  # type: ignore[arg-type]


def _on_unraisable(unraisable: Any) -> None:
    """Have a signal sent again whose exception nobody could take; show all others as ever."""
    signum = getattr(unraisable.exc_value, _SIGNAL, None)
    if signum is None:
        _main.show_unraisable(unraisable)
    else:
        _send_again(signum)


def handle_interrupt_key() -> None:
    """Let Ctrl-C respect shields, unless the user's program handles it; for the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_interrupt_key)


def _on_interrupt_key(signum: int, frame: Any) -> None:
    interrupt(KeyboardInterrupt(), signum)
