"""Timers of a worker: seconds by tag, kept apart for each group call."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from rlinf.scheduler import trace

F = TypeVar("F", bound=Callable[..., Any])

_OF_CALL: ContextVar[dict[str, float] | None] = ContextVar("rlinf_timers", default=None)


def open_call() -> dict[str, float]:
    """Begin the timers of a call in this context."""
    timers: dict[str, float] = {}
    _OF_CALL.set(timers)
    return timers


def of_call() -> dict[str, float] | None:
    """Return the timers of the call in this context, None outside a call."""
    return _OF_CALL.get()


@contextlib.contextmanager
def measure(store: dict[str, float], tag: str) -> Iterator[None]:
    """Add the time of the block to `store[tag]`."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        end = time.perf_counter()
        store[tag] = store.get(tag, 0.0) + end - begin
        recorder = trace.current()
        if recorder is not None:
            recorder.add(tag, trace.BLOCK, begin, end)


def timed(tag: str | None = None) -> Callable[[F], F]:
    """Decorator for methods of a worker, plain or coroutine: times each call under `tag`."""

    def decorate(function: F) -> F:
        name = tag or function.__name__
        if inspect.iscoroutinefunction(function) or asyncio.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_coroutine(self: Any, *args: Any, **kwargs: Any) -> Any:
                with self.worker_timer(name):
                    return await function(self, *args, **kwargs)

            return timed_coroutine  # type: ignore[return-value]

        @functools.wraps(function)
        def timed_method(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.worker_timer(name):
                return function(self, *args, **kwargs)

        return timed_method  # type: ignore[return-value]

    return decorate
