"""A thread with an event loop, for coroutines of others that may block it or never end.

They share the thread, and so each waits for its turn while others compute. What a coroutine takes
is counted without the turns of others: the deadline of one is no matter of how many there are, up
to a multiple of it by the clock: one that never answers is late although others always compute.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any

_owner: ContextVar[Patience | None] = ContextVar("patience of the turn", default=None)
_BLOCKED_SECONDS = 1.0
MOST_WAITS = 30
"""How many times its seconds another may take by the clock, turns of others included."""


class LoopThread:
    """Runs coroutines in an event loop of its own; one that blocks holds up the others there only.

    Args:
        name: of the thread.

    Attributes:
        left: whether it was given up.
    """

    def __init__(self, name: str) -> None:
        self.left = False
        self._turns = _Turns()
        self._open: set[asyncio.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._task)
        threading.Thread(target=self._loop.run_forever, daemon=True, name=name).start()

    def begin(
        self, work: Callable[[], Coroutine[Any, Any, Any]], patience: Patience
    ) -> asyncio.Future[Any]:
        """Begin some work; return what it will give, to be waited for in the caller's loop.

        Args:
            work: called and awaited in the thread. It is cancelled with what is returned.
            patience: with it; counts from now on.
        """
        here = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = here.create_future()
        tasks: list[asyncio.Task[None]] = []
        patience.count(self._turns)

        def settle(value: Any, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(value)
            elif isinstance(error, asyncio.CancelledError):
                answer.cancel()
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                answer.set_exception(error)
            else:
                # What ends a process, or what a future cannot hold.
                answer.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

        async def run() -> None:
            value, error = None, None
            try:
                value = await work()
            except BaseException as raised:
                error = raised
            # From here, not when the task is seen to be done: that is after the turns of others.
            _call(here, settle, value, error)

        def over(task: asyncio.Task[None]) -> None:
            # A task that ended before `run` could tell what came of the work.
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            _call(here, settle, None, error)

        def start() -> None:
            if not answer.done():
                _owner.set(patience)
                tasks.append(self._loop.create_task(run()))
                tasks[0].add_done_callback(over)

        def ended(_: asyncio.Future[Any]) -> None:
            self._open.discard(answer)
            if answer.cancelled():
                self._turns.cancelled(patience)
            else:
                # Who waits may have gone.
                answer.exception()
            _call(self._loop, lambda: [task.cancel() for task in tasks])

        self._open.add(answer)
        answer.add_done_callback(ended)
        self._loop.call_soon_threadsafe(start)
        return answer

    async def is_blocked(self, patience: Patience) -> bool:
        """Return whether others do not get their turn, when the time of a coroutine has passed."""
        running, lasts = self._turns.now()
        if self._turns.overrun:
            return True
        if lasts:
            return running is patience or lasts > patience.seconds
        here = asyncio.get_running_loop()
        came = asyncio.Event()
        self._loop.call_soon_threadsafe(_call, here, came.set)
        try:
            await asyncio.wait_for(came.wait(), _BLOCKED_SECONDS)
        except asyncio.TimeoutError:
            # No turn of a coroutine, but something that one has put into the loop.
            return not self._turns.now()[1]
        return False

    def leave(self) -> None:
        """Give the thread up and cancel all that is under way in it, in the loop of the callers."""
        self.left = True
        for answer in list(self._open):
            answer.cancel()

    def _task(self, loop: Any, work: Any, **further: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_in_turns(work, self._turns), loop=loop, **further)


class Patience:
    """Seconds that another may take, without those in which it waits for us or for its turn.

    Args:
        seconds: each time, anew after each wait; waits for its turn included, it may take
            `MOST_WAITS` times as many.

    Attributes:
        seconds: the same.
        passed: done when they have passed, or do not count any more; also when the turn of another
            takes longer than that, or the turns of one that was cancelled together.
        used: seconds of all turns that the other one has had.
        used_before: the same until it was cancelled; None if it was not.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.used = seconds, 0.0
        self.used_before: float | None = None
        self._waits = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self.passed: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._turns: _Turns | None = None

    def count(self, turns: _Turns) -> None:
        """Count from now on; in the loop.

        Args:
            turns: of the thread where the other one runs.
        """
        self._turns = turns
        self._start()

    def begin_wait(self) -> None:
        """Count nothing from now on; from any thread, also while the loop is busy."""
        with self._lock:
            self._waits += 1

    def end_wait(self) -> None:
        """Count anew, if this was the last one that waited; from any thread."""
        with self._lock:
            self._waits -= 1
        _call(self._loop, self._start)

    def stop(self) -> None:
        """Count no more; in the loop."""
        self.passed.cancel()
        self._look_again(None)

    def _start(self) -> None:
        self._begin, self._begin_of_all = self._counted(), time.monotonic()
        self._look_again(self.seconds)

    def _counted(self) -> float:
        """Return the time by a clock that stands while others have their turns."""
        others = 0.0 if self._turns is None else self._turns.of_others(self)
        return time.monotonic() - others

    def _look_again(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if seconds is not None and not self.passed.done():
            self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        if self._waits or self.passed.done():
            return
        left = self.seconds - (self._counted() - self._begin)
        left_of_all = MOST_WAITS * self.seconds - (time.monotonic() - self._begin_of_all)
        left = min(left, left_of_all)
        turns = self._turns
        blocked = turns is not None and (turns.overrun or turns.now()[1] > self.seconds)
        if left > 0 and not blocked:
            self._look_again(left)
        else:
            self.passed.set_result(None)


class _Turns:
    """Whose turn it is in a thread, and how long all turns took.

    A coroutine may run an event loop in its own turn, as `nest_asyncio` lets it: turns in there are
    not of it, and are not counted twice.

    Attributes:
        overrun: whether one that was cancelled went on for longer than its seconds.
    """

    def __init__(self) -> None:
        self.overrun = False
        self._lock = threading.Lock()
        self._of_all = 0.0
        self._now: tuple[Patience | None, float] | None = None

    def begin(self) -> tuple[Patience | None, float] | None:
        """Begin a turn, of the owner of the context; return the one that it interrupts, if any."""
        with self._lock:
            outer, now = self._now, time.monotonic()
            self._count(now)
            self._now = _owner.get(), now
            return outer

    def end(self, outer: tuple[Patience | None, float] | None) -> None:
        """End it, and go on with what it interrupted."""
        with self._lock:
            now = time.monotonic()
            self._count(now)
            self._now = None if outer is None else (outer[0], now)

    def _count(self, now: float) -> None:
        """Count the turn that there is, as far as it came."""
        if self._now is None:
            return
        owner, begin = self._now
        self._of_all += now - begin
        if owner is not None:
            owner.used += now - begin
            if owner.used_before is not None:
                self.overrun |= owner.used - owner.used_before > owner.seconds

    def cancelled(self, owner: Patience) -> None:
        """Take note that an owner should have no more turns; some to clean up are fine."""
        with self._lock:
            running = self._now is not None and self._now[0] is owner
            lasts = time.monotonic() - self._now[1] if self._now is not None and running else 0.0
            owner.used_before = owner.used + lasts

    def now(self) -> tuple[Patience | None, float]:
        """Return whose turn it is, and for how long it has been; 0 if it is nobody's."""
        with self._lock:
            if self._now is None:
                return None, 0.0
            owner, begin = self._now
            return owner, time.monotonic() - begin

    def of_others(self, owner: Patience) -> float:
        """Return how long all turns took that were not of an owner, until now."""
        with self._lock:
            found = self._of_all - owner.used
            if self._now is not None and self._now[0] is not owner:
                found += time.monotonic() - self._now[1]
            return found


class _InTurns:
    """Something to await that tells when each turn of a coroutine begins and ends."""

    def __init__(self, work: Any, turns: _Turns) -> None:
        self._work, self._turns = work, turns

    def __await__(self) -> Generator[Any, Any, Any]:
        go_on, given = self._work.send, None
        while True:
            outer = self._turns.begin()
            try:
                waits_for = go_on(given)
            except StopIteration as ended:
                return ended.value
            finally:
                self._turns.end(outer)
            try:
                go_on, given = self._work.send, (yield waits_for)
            except GeneratorExit:
                # Thrown away, perhaps by another thread.
                self._work.close()
                raise
            except BaseException as error:
                go_on, given = self._work.throw, error


async def _in_turns(work: Any, turns: _Turns) -> Any:
    return await _InTurns(work, turns)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *arguments: Any) -> None:
    """Call something in a loop, from any thread, unless the loop is closed: nobody waits then."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
