"""Programs in sandboxes of this repository, for `benchmarks.sandbox`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from answer import serve

from rlinf.utils.sandbox.confine import GUARANTEES, LAYERS
from rlinf.utils.sandbox.judge import Judge
from rlinf.utils.sandbox.sandbox import Limits, Sandbox


class Sandboxes:
    """Starts a sandbox for each program, and a process in it for each test."""

    def prepare(self, layers: bool, seconds: float, memory_mb: int) -> str:
        """Choose whether programs are confined, and return what holds."""
        self._limits = Limits(seconds=seconds, memory_mb=memory_mb)
        self._layers = LAYERS if layers else ()
        self._require = GUARANTEES if layers else ()
        with self._sandbox("") as sandbox:
            return str(sandbox.enforced)

    def first(self, code: str, given: str, expected: str, count: int) -> list[float]:
        """Return the seconds of runs of a program, each in a sandbox of its own."""
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            with self._sandbox(code) as sandbox:
                result = sandbox.run(given)
            times.append(time.perf_counter() - begin)
            assert result.stdout == expected, result
        return times

    def again(self, code: str, given: str, expected: str, count: int) -> list[float]:
        """Return the seconds of further runs of a program whose sandbox is there."""
        times = []
        with self._sandbox(code) as sandbox:
            sandbox.run(given)
            for _ in range(count):
                begin = time.perf_counter()
                result = sandbox.run(given)
                times.append(time.perf_counter() - begin)
                assert result.stdout == expected, result
        return times

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
            judge = Judge(self._limits, layers=self._layers, require=self._require)
            for _ in range(programs):
                with self._sandbox(code) as sandbox:
                    for test in tests:
                        if len(test) == 1:
                            assert judge.run(sandbox, test[0]).value
                        else:
                            assert sandbox.run(test[0]).stdout == test[1]
            judge.close()

        begin = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
        return time.perf_counter() - begin

    def stop(self) -> None:
        """Do nothing: each sandbox is closed where it is used."""

    def _sandbox(self, code: str) -> Sandbox:
        return Sandbox(code, self._limits, layers=self._layers, require=self._require)


if __name__ == "__main__":
    serve(Sandboxes())
