"""Programs in processes with limits and nothing else, for `benchmarks.sandbox`.

Each test is a new process, and a check runs in that of the program, as scripts do it that have no
sandbox: the program sees files, sockets and the check.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from answer import serve


def limit(seconds: float, memory_mb: int) -> None:
    """Set the limits that a sandbox sets, too."""
    limits = {
        resource.RLIMIT_AS: memory_mb << 20,
        resource.RLIMIT_CPU: int(seconds) + 2,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def child(pipe: Connection, code: str, given: str, seconds: float, memory_mb: int) -> None:
    """Run a program in a process that was spawned, and send what it prints."""
    limit(seconds, memory_mb)
    sys.stdin = io.StringIO(given)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    pipe.send(printed.getvalue())


class Processes:
    """Starts a process for each test."""

    def prepare(self, spawns: bool, seconds: float, memory_mb: int) -> str:
        """Choose `multiprocessing` or `subprocess`, and return what holds."""
        self._run = self._spawn if spawns else self._start
        self._limits: dict[str, Any] = {"seconds": seconds, "memory_mb": memory_mb}
        return "limits of the kernel alone"

    def first(self, code: str, given: str, expected: str, count: int) -> list[float]:
        """Return the seconds of runs of a program."""
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            printed = self._run(code, given)
            times.append(time.perf_counter() - begin)
            assert printed == expected, printed
        return times

    again = first
    """A further run of the same program is a process like the first."""

    def judge(
        self, code: str, tests: Sequence[Sequence[str]], programs: int, workers: int
    ) -> float:
        """Return the seconds in which workers judge programs, each by all tests.

        Args:
            code: Of each program.
            tests: Input and output of each, or a check alone.
            programs: How many each worker judges.
            workers: How many judge at the same time.
        """

        def work(_: int) -> None:
            for _ in range(programs):
                for test in tests:
                    if len(test) == 1:
                        self._run(f"{code}\n{test[0]}", "")
                    else:
                        assert self._run(code, test[0]) == test[1]

        begin = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
        return time.perf_counter() - begin

    def stop(self) -> None:
        """Do nothing: each process has ended."""

    def _start(self, code: str, given: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=given,
            capture_output=True,
            text=True,
            check=True,
            timeout=self._limits["seconds"],
            preexec_fn=lambda: limit(**self._limits),
        )
        return done.stdout

    def _spawn(self, code: str, given: str) -> str:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(theirs, code, given), kwargs=self._limits)
        process.start()
        theirs.close()
        if not ours.poll(self._limits["seconds"]):
            process.kill()
            raise TimeoutError
        printed = ours.recv()
        process.join()
        ours.close()
        return printed


if __name__ == "__main__":
    serve(Processes())
