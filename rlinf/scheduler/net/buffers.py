"""Memory for large messages, used again once nobody refers to what was received in it.

Fresh memory has to be cleared by the kernel, which takes longer than to receive into it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy

SMALLEST = 1 << 20
"""Bytes; smaller memory is cheap to get."""
_MOST_KEPT = 4 << 30
_SHARE_KEPT = 1 / 8
"""Of the memory of the machine."""
_KEPT_SECONDS = 30.0


class _Free(NamedTuple):
    """Memory that nobody uses, and since when."""

    memory: numpy.ndarray
    since: float


class BufferPool:
    """Gives memory and takes it back by itself.

    Attributes:
        reused: how often memory was given that had been used before.
    """

    def __init__(self) -> None:
        self.reused = 0
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._most = min(_MOST_KEPT, int(_SHARE_KEPT * pages))
        self._free: list[_Free] = []
        self._cleaner: threading.Thread | None = None
        # Memory may be let go of in the middle of anything, also of what this holds.
        self._lock = threading.RLock()

    def get(self, size: int) -> memoryview:
        """Return memory of a size, with anything in it.

        Raises:
            MemoryError: there is not so much.
        """
        import numpy

        if size < SMALLEST:
            return memoryview(numpy.empty(size, numpy.uint8))
        self._start_cleaner()
        memory = self._take(size)
        if memory is None:
            memory = numpy.empty(size, numpy.uint8)
        # All that refers to the memory refers to this. A slice would not do: NumPy lets arrays that
        # are made of a slice refer to what it is a slice of.
        lent = numpy.frombuffer(memoryview(memory), numpy.uint8, size)
        weakref.finalize(lent, self._give_back, memory).atexit = False
        return memoryview(lent)

    def _take(self, size: int) -> numpy.ndarray | None:
        """Return the smallest that fits, and is not twice as large."""
        with self._lock:
            fitting = [f for f in self._free if size <= f.memory.nbytes <= 2 * size]
            if not fitting:
                return None
            best = min(fitting, key=lambda free: free.memory.nbytes)
            self._free = [free for free in self._free if free is not best]
            self.reused += 1
            return best.memory

    def _give_back(self, memory: numpy.ndarray) -> None:
        with self._lock:
            self._free.append(_Free(memory, time.monotonic()))
            while sum(free.memory.nbytes for free in self._free) > self._most:
                self._free.pop(0)

    def drop_old(self, now: float) -> None:
        """Let go of what has not been used for a while."""
        with self._lock:
            self._free = [free for free in self._free if now - free.since < _KEPT_SECONDS]

    def _start_cleaner(self) -> None:
        with self._lock:
            # A forked child has no threads of its parent.
            if self._cleaner is None or not self._cleaner.is_alive():
                self._cleaner = threading.Thread(
                    target=self._clean, name="rlinf-buffers", daemon=True
                )
                self._cleaner.start()

    def _clean(self) -> None:
        while True:
            time.sleep(_KEPT_SECONDS / 3)
            self.drop_old(time.monotonic())


POOL = BufferPool()
"""Of this process."""
