"""A thread with an event loop, for coroutines of others that may block it or never end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class LoopThread:
    """Runs coroutines in an event loop of its own; one that blocks holds up the others there only.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name=name).start()

    def begin(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Future[Any]:
        """Begin some work; return what it will give, to be waited for in the caller's loop.

        Args:
            work: called and awaited in the thread. It is cancelled with what is returned.
        """

        async def run() -> Any:
            return await work()

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))

    async def is_blocked(self, seconds: float = 1.0) -> bool:
        """Return whether the loop does not come round within some seconds."""
        here = asyncio.get_running_loop()
        came = asyncio.Event()
        self._loop.call_soon_threadsafe(lambda: here.call_soon_threadsafe(came.set))
        try:
            await asyncio.wait_for(came.wait(), seconds)
        except asyncio.TimeoutError:
            return True
        return False


class Patience:
    """Seconds that another may take, not counting those in which it waits for us.

    Args:
        seconds: each time, anew after each wait.

    Attributes:
        passed: done when they have passed, or do not count any more.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._waits = seconds, 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self.passed: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._start()

    def begin_wait(self) -> None:
        """Count nothing from now on; from any thread, also while the loop is busy."""
        with self._lock:
            self._waits += 1

    def end_wait(self) -> None:
        """Count anew, if this was the last one that waited; from any thread."""
        with self._lock:
            self._waits -= 1
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody counts.
            self._loop.call_soon_threadsafe(self._start)

    def stop(self) -> None:
        """Count no more; in the loop."""
        self.passed.cancel()
        self._start()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.passed.done():
            self._timer = self._loop.call_later(self._seconds, self._pass)

    def _pass(self) -> None:
        if not self._waits and not self.passed.done():
            self.passed.set_result(None)
