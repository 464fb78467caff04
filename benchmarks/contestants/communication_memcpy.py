"""One copy of memory that has been touched, the unit of `benchmarks.communication`."""

from __future__ import annotations

import time

import numpy as np
from answer import serve


class Memcpy:
    """Copies from one buffer to another within a process."""

    def prepare(self) -> None:
        """Nothing is to be prepared."""

    def round_trips(self, size: int, count: int) -> list[float]:
        """Return the seconds of each of `count` copies."""
        source = np.full(size, 1, np.uint8)
        target = np.full(size, 2, np.uint8)
        times = []
        for step in range(count):
            source[:] = step % 256
            begin = time.perf_counter()
            np.copyto(target, source)
            # There is no way back; what is halved by the reader is a copy each way.
            times.append(2 * (time.perf_counter() - begin))
            assert target[-1] == step % 256
        return times

    def one_way(self, size: int, count: int) -> float:
        """Return the seconds of `count` copies in a row."""
        source = np.full(size, 1, np.uint8)
        target = np.full(size, 2, np.uint8)
        begin = time.perf_counter()
        for _ in range(count):
            np.copyto(target, source)
        return time.perf_counter() - begin

    def stop(self) -> None:
        """Nothing is to be ended."""


if __name__ == "__main__":
    serve(Memcpy())
