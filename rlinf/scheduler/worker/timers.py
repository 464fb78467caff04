"""Timers of a worker: seconds by tag, kept apart for each group call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from rlinf.scheduler import trace

if TYPE_CHECKING:
    from rlinf.scheduler.failure.record import PostMortemRecord

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


class Timer:
    """A block that is timed, for a `with` statement; a plain class, since steps of envs have it.

    Args:
        store: `store[tag]` is what the time of the block is added to.
        tag: what the block does.
        record: is told that it is being done.
    """

    __slots__ = ("_begin", "_record", "_store", "_tag", "_token")

    def __init__(self, store: dict[str, float], tag: str, record: PostMortemRecord) -> None:
        self._store, self._tag, self._record = store, tag, record

    def __enter__(self) -> None:
        self._token = self._record.enter(self._tag)
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        begin, end, tag = self._begin, time.perf_counter(), self._tag
        self._store[tag] = self._store.get(tag, 0.0) + end - begin
        recorder = trace.current()
        if recorder is not None:
            recorder.add(tag, trace.BLOCK, begin, end)
        self._record.leave(self._token)


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
