"""The handle of something that is under way: wait for it, await it, chain on it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from rlinf.scheduler import trace
from rlinf.scheduler.deadlines import await_within, wait_within
from rlinf.scheduler.errors import CallCancelled, WaitTimeout
from rlinf.scheduler.net import waker
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.interrupts import interruptible, shielded

# Held for a few instructions only, so one for all is enough.
_FINISHING = threading.Lock()
_MAIN = threading.main_thread().ident


class Work:
    """A transfer or a queue operation that has been started.

    Attributes:
        what: what is waited for, in words.
        waiter: who waits.
        timeout: default deadline of `wait`, in seconds.
        grace: how long to wait, after a deadline, for word whether it came in time after all.
        source: connection that brings the outcome, if that is known; the main thread reads it
            while it waits.
    """

    __slots__ = (
        "what",
        "waiter",
        "timeout",
        "grace",
        "source",
        "_gate",
        "_waker",
        "_done",
        "_value",
        "_error",
        "_then",
        "_cancel",
        "_undo",
        "__weakref__",
    )

    def __init__(
        self,
        what: str | Callable[[], str],
        waiter: str = "",
        timeout: float | None = None,
        cancel: Callable[[], None] | None = None,
        grace: float = 0.0,
        source: Connection | None = None,
        undo: Callable[[Any], None] | None = None,
    ):
        """Describe work that somebody else finishes.

        Args:
            what: what is waited for, or a function that says it.
            waiter: who waits.
            timeout: default deadline of `wait`, in seconds.
            cancel: asks whoever does the work to stop; what comes nevertheless still counts.
            grace: how long the cancelled work may take to say what became of it.
            source: connection that brings the outcome, if that is known.
            undo: `undo(outcome)` brings back what the work has taken, if nobody will have it. It
                must not refer to this work.
        """
        self.what = what
        self.waiter = waiter
        self.timeout = timeout
        self.grace = grace
        self.source = source
        self._waker: waker.Waker | None = None
        # A lock is the cheapest thing that a thread can wait on.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._then: list[Callable[[Work], None]] = []
        self._cancel = cancel
        self._undo = undo

    # -- finishing (by whoever does the work) ---------------------------------------------------

    @shielded
    def finish(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the outcome, once; False if there is one already, and this one is undone."""
        with _FINISHING:
            late = self._done
            if not late:
                self._value, self._error, self._done = value, error, True
                callbacks, self._then = self._then, []
                # Refers back to this work; what was received must go as soon as it is let go.
                self._cancel = None
        if late:
            if error is None and self._undo is not None:
                self._undo(value)
            return False
        self._open_gate()
        waiting = self._waker
        if waiting is not None and waiting.thread != threading.get_ident():
            waiting.wake()
        for callback in callbacks:
            callback(self)
        return True

    @shielded
    def on_done(self, callback: Callable[[Work], None]) -> None:
        """Call `callback(self)` when the work is done; at once if it is."""
        with _FINISHING:
            if not self._done:
                self._then.append(callback)
                return
        callback(self)

    # -- waiting --------------------------------------------------------------------------------

    def done(self) -> bool:
        """Return whether there is an outcome."""
        return self._done

    @shielded
    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the outcome and return it, or raise its error.

        Raises:
            WaitTimeout: the deadline passed.
        """
        if self._done:
            return self.result()
        limit = self.timeout if timeout is None else timeout
        begin = time.perf_counter()
        try:
            if not wait_within(limit, self._hold):
                self._ask_to_stop()
                self._hold(self.grace)
                self._check_in_time(limit)
        except BaseException:
            self.abandon()
            raise
        self._record(begin)
        return self.result()

    def _record(self, begin: float) -> None:
        recorder, end = trace.current(), time.perf_counter()
        if recorder is not None and end - begin > trace.SHORTEST_WAIT:
            what = self.what() if callable(self.what) else self.what
            # Keys are often numbers of steps: all waits on a channel are one line of a summary.
            recorder.add(what.partition(", key ")[0], trace.WAIT, begin, end)

    def _hold(self, limit: float | None) -> bool:
        if self.source is not None and not self._done and threading.get_ident() == _MAIN:
            limit = self._read_source(limit)
        if not self._done:
            seconds = -1 if limit is None else min(max(0.0, limit), threading.TIMEOUT_MAX)
            if interruptible(self._gate.acquire, True, seconds):
                self._open_gate()
        return self._done

    def _open_gate(self) -> None:
        """Let the next one through who waits; also after a wait that was interrupted."""
        try:
            self._gate.release()
        except RuntimeError:
            # Another one has let them through.
            pass

    def _read_source(self, limit: float | None) -> float | None:
        """Read what comes until this is done; return what is left of the deadline."""
        begin = time.monotonic()
        self._waker = waker.of_main_thread()
        try:
            self.source.read_until(self.done, self._waker, limit)  # type: ignore[union-attr]
        finally:
            self._waker = None
        return None if limit is None else limit - (time.monotonic() - begin)

    def _check_in_time(self, limit: float | None) -> None:
        """After a deadline: what came at the last moment must not be lost."""
        if not self._done or isinstance(self._error, CallCancelled):
            raise self._timed_out(limit)

    async def async_wait(self, timeout: float | None = None) -> Any:
        """Like `wait`, for coroutines."""
        if self._done:
            return self.result()
        limit = self.timeout if timeout is None else timeout
        begin = time.perf_counter()
        try:
            if not await await_within(limit, self._async_hold):
                self._ask_to_stop()
                await self._async_hold(self.grace)
                self._check_in_time(limit)
        except BaseException:
            self.abandon()
            raise
        self._record(begin)
        return self.result()

    async def _async_hold(self, limit: float | None) -> bool:
        if self._done:
            return True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake(_: Work) -> None:
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))

        self.on_done(wake)
        # Not `wait_for`, which may swallow a cancellation that comes together with the outcome.
        await asyncio.wait([future], timeout=limit)
        return self._done

    def __await__(self) -> Any:
        return self.async_wait().__await__()

    @shielded
    def result(self) -> Any:
        """Return the outcome of work that is done."""
        if self._error is not None:
            raise self._error
        # It belongs to the caller now.
        self._undo = None
        value = self._value
        return value.load() if isinstance(value, Deferred) else value

    def cancel(self) -> None:
        """Give the work up; `wait` then raises `CallCancelled`, unless it came before that."""
        if not self._done:
            self.abandon()

    @shielded
    def abandon(self) -> None:
        """Nobody will take the outcome: what the work would have taken stays where it is.

        What has come and was not taken yet is brought back.
        """
        error = CallCancelled("the request was cancelled")
        with _FINISHING:
            done, cancel, undo, value = self._done, self._cancel, self._undo, self._value
            untaken = done and self._error is None and undo is not None
            if untaken:
                self._value, self._error, self._undo = None, error, None
        if done:
            self._open_gate()
            if untaken and undo is not None:
                undo(value)
        elif undo is not None and not self.finish(error=error):
            # It came just now.
            self.abandon()
        elif cancel is not None:
            cancel()

    def _ask_to_stop(self) -> None:
        cancel = self._cancel
        if cancel is not None:
            cancel()

    @shielded
    def then(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Work:
        """New work whose outcome is `function(outcome, *args, **kwargs)`."""
        following = Work(
            self.what,
            self.waiter,
            self.timeout,
            self._ask_to_stop,
            self.grace,
            self.source,
            None if self._undo is None else lambda _: self.abandon(),
        )

        def run(done: Work) -> None:
            if done._error is not None:
                following.finish(error=done._error)
            else:
                # Not here: this may be the I/O thread, and decoding belongs to whoever waits.
                following.finish(_Mapped(done, lambda value: function(value, *args, **kwargs)))

        if self._undo is not None:
            following.on_done(lambda done: done._error is None or self.abandon())
        self.on_done(run)
        return following

    def _timed_out(self, limit: float | None) -> WaitTimeout:
        what = self.what() if callable(self.what) else self.what
        return WaitTimeout(what, waiter=self.waiter or "driver", seconds=limit)


class Deferred:
    """An outcome that is made when it is first asked for, in the thread that asks."""

    def load(self) -> Any:
        """Make the outcome; the same one each time."""
        raise NotImplementedError


class _Mapped(Deferred):
    """The outcome of a work with a function applied to it, once."""

    def __init__(self, work: Work, function: Callable[[Any], Any]):
        self._work = work
        self._function = function
        self._lock = threading.Lock()
        self._outcome: tuple[Any, BaseException | None] | None = None

    def load(self) -> Any:
        with self._lock:
            if self._outcome is None:
                try:
                    self._outcome = self._function(self._work.result()), None
                except BaseException as error:
                    self._outcome = None, error
        value, error = self._outcome
        if error is not None:
            raise error
        return value


def finished(
    value: Any = None,
    error: BaseException | None = None,
    undo: Callable[[Any], None] | None = None,
) -> Work:
    """Work that is done already."""
    work = Work("nothing", undo=undo)
    work.finish(value, error)
    return work


@shielded
def gather(works: list[Work]) -> Work:
    """Work that is done when all are, with the list of their outcomes.

    It fails with the first that fails; the others are then abandoned.
    """
    first = works[0]

    def ask_to_stop() -> None:
        for work in works:
            work._ask_to_stop()

    def abandon(_: Any) -> None:
        for work in works:
            work.abandon()

    source = next((work.source for work in works if not work.done()), None)
    together = Work(
        first.what, first.waiter, first.timeout, ask_to_stop, first.grace, source, abandon
    )
    together.on_done(lambda done: done._error is None or abandon(done))
    left = [len(works)]
    lock = threading.Lock()

    def one_done(work: Work) -> None:
        with lock:
            left[0] -= 1
            complete = left[0] == 0
        if work._error is not None:
            together.finish(error=work._error)
        elif complete:
            together.finish(_Outcomes(works))

    for work in works:
        work.on_done(one_done)
    return together


class _Outcomes(Deferred):
    """Outcomes of several works, made in the thread that asks for them."""

    def __init__(self, works: list[Work]):
        self._works = works

    def load(self) -> list[Any]:
        return [work.result() for work in self._works]
