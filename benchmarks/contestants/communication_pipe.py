"""Two processes and a pipe of the standard library, for `benchmarks.communication`."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np
from answer import serve


def partner(pipe: Connection) -> None:
    """Take messages as it is told by `(answers, size, count)`, and answer each if so asked."""
    while (told := pipe.recv()) is not None:
        answers, size, count = told
        mine, taken = np.full(size, 3, np.uint8), np.empty(size, np.uint8)
        pipe.send("ready")
        for _ in range(count):
            pipe.recv_bytes_into(taken)
            if answers:
                pipe.send_bytes(mine)
        if not answers:
            pipe.send("done")


class Pipe:
    """Sends bytes to another process and takes them back."""

    def prepare(self) -> None:
        """Start the other process."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=partner, args=(other,), daemon=True)
        self._process.start()

    def round_trips(self, size: int, count: int) -> list[float]:
        """Return the seconds of each of `count` round trips."""
        source, taken = np.full(size, 1, np.uint8), np.empty(size, np.uint8)
        self._pipe.send((True, size, count))
        self._pipe.recv()
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self._pipe.send_bytes(source)
            self._pipe.recv_bytes_into(taken)
            times.append(time.perf_counter() - begin)
        assert taken[-1] == 3
        return times

    def one_way(self, size: int, count: int) -> float:
        """Return the seconds until the other process has taken `count` messages."""
        source = np.full(size, 1, np.uint8)
        self._pipe.send((False, size, count))
        self._pipe.recv()
        begin = time.perf_counter()
        for _ in range(count):
            self._pipe.send_bytes(source)
        assert self._pipe.recv() == "done"
        return time.perf_counter() - begin

    def stop(self) -> None:
        """End the other process."""
        self._pipe.send(None)
        self._process.join()


if __name__ == "__main__":
    serve(Pipe())
