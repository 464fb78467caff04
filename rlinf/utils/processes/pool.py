"""Processes that do jobs, one after the other; a job that hangs or crashes costs itself only."""

from __future__ import annotations

import json
import os
import pickle
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from rlinf.utils.logger_keys import without_logger_keys
from rlinf.utils.processes.child import ChildFailed, ChildProcess, ChildTimeout, ChildTooLoud

Status = Literal["ok", "error", "timeout", "crash", "output"]
CLOSE_SECONDS = 30.0
"""How long to wait for the thread of a process whose end cannot be seen."""


class PoolFailed(RuntimeError):
    """The processes of a pool cannot be started."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        status: "ok"; "error" when the function raised; "timeout" when it took too long, or raised
            `TimeoutError`; "crash" when its process died; "output" when it printed too much.
        value: what the function returned, as JSON has it.
        message: what went wrong, in words.
        seconds: how long it took.
    """

    status: Status
    value: Any = None
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class ProcessSpec:
    """What the processes of a pool are.

    Attributes:
        target: `package.module:function`, which makes the function that does the jobs; an attribute
            `about` of it is told by `wait_ready`.
        args: what `target` is called with, once per process.
        confined: take network, processes, signals and files from the process once the function is
            made.
        memory_mb: address space (MiB); 0 is no limit.
    """

    target: str
    args: tuple[Any, ...] = ()
    confined: bool = True
    memory_mb: int = 0


class ProcessPool:
    """Does jobs in processes of its own.

    A process serves many jobs. It is killed, with all it has started, when a job takes too long or
    prints too much, and replaced when it is gone; other jobs do not notice. In each process jobs
    run in the main thread, where signals work.

    Args:
        spec: what the processes are.
        processes: how many.
        timeout: seconds for one job.
        start_timeout: seconds for a process to become ready.
        max_output: bytes that a job may print.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        processes: int = 1,
        timeout: float = 10.0,
        start_timeout: float = 120.0,
        max_output: int = 1 << 20,
    ):
        self._jobs: queue.SimpleQueue[tuple[Future[Outcome], bytes] | None] = queue.SimpleQueue()
        self._closed = False
        self._threads = [
            _ProcessThread(spec, self._jobs, timeout, start_timeout, max_output)
            for _ in range(processes)
        ]
        for thread in self._threads:
            thread.start()

    def wait_ready(self) -> str:
        """Wait until all processes are ready; return how they are confined, in words.

        Raises:
            PoolFailed: one of them could not start; says why.
        """
        words = [thread.ready.result() for thread in self._threads]
        return words[0]

    def submit(self, *args: Any) -> Future[Outcome]:
        """Begin a job; its outcome never is an exception.

        Args:
            *args: What the function is called with; anything that can be pickled.
        """
        if self._closed:
            raise PoolFailed("the pool is closed")
        future: Future[Outcome] = Future()
        self._jobs.put((future, pickle.dumps(args)))
        return future

    def map(self, jobs: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """Do some jobs and wait for them; outcomes are in their order."""
        futures = [self.submit(*job) for job in jobs]
        return [future.result() for future in futures]

    @property
    def pids(self) -> list[int]:
        """Process ids of the processes that are alive now."""
        return [thread.pid for thread in self._threads if thread.pid]

    def close(self) -> None:
        """End all processes; jobs that have not begun are cancelled, running ones are killed."""
        if self._closed:
            return
        self._closed = True
        for thread in self._threads:
            thread.stop()
        try:
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job[0].cancel()
        except queue.Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


class _ProcessThread(threading.Thread):
    """One process and the thread that feeds it; the process dies with the thread."""

    def __init__(
        self,
        spec: ProcessSpec,
        jobs: queue.SimpleQueue[tuple[Future[Outcome], bytes] | None],
        timeout: float,
        start_timeout: float,
        max_output: int,
    ):
        super().__init__(name="rlinf-pool", daemon=True)
        self.ready: Future[str] = Future()
        self._spec = spec
        self._jobs = jobs
        self._timeout, self._start_timeout = timeout, start_timeout
        self._max_output = max_output
        self._child: ChildProcess | None = None
        self._stopped = False
        self._ending = threading.Lock()

    @property
    def pid(self) -> int:
        child = self._child
        return child.pid if child is not None else 0

    def stop(self) -> None:
        self._stopped = True
        with self._ending:
            if self._child is not None:
                # The thread may be waiting for it; it closes the rest itself.
                self._child.strike()

    def run(self) -> None:
        try:
            self._start()
        except Exception as error:
            self.ready.set_exception(PoolFailed(_in_words(error)))
        while (job := self._jobs.get()) is not None:
            future, question = job
            if future.set_running_or_notify_cancel():
                future.set_result(self._do(question))
        self._drop()

    def _do(self, question: bytes) -> Outcome:
        """Do a job; whatever goes wrong, even what nobody thought of, is its outcome.

        Others wait for this thread: it must not end.
        """
        if self._stopped:
            return Outcome("crash", message="the pool was closed")
        try:
            if self._child is not None and not self._child.waits:
                # It died after its last job, or goes on talking: the next one must not pay for it.
                self._drop()
            if self._child is None:
                self._start()
        except Exception as error:
            return Outcome("crash", message=f"no process could be started: {_in_words(error)}")
        child = self._child
        assert child is not None
        begin = time.monotonic()
        try:
            outcome, leaves = _read(child.ask(question, self._timeout))
        except Exception as error:
            self._drop()
            return self._failed(error, child.last_words, time.monotonic() - begin)
        if leaves:
            self._drop()
        return replace(outcome, seconds=time.monotonic() - begin)

    def _failed(self, error: Exception, words: str, seconds: float) -> Outcome:
        status: Status = "crash"
        if isinstance(error, ChildTimeout):
            status = "timeout"
        elif isinstance(error, ChildTooLoud):
            status = "output"
        message = _in_words(error)
        if status == "crash" and words:
            message += f"; its last words: {words}"
        return Outcome(status, message=message, seconds=seconds)

    def _start(self) -> None:
        env = {**without_logger_keys(os.environ), "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            env[name] = "1"
        hello = pickle.dumps(self._spec)
        with self._ending:
            if self._stopped:
                # Who stopped us saw no process to end.
                raise PoolFailed("the pool was closed")
            self._child = ChildProcess(
                "rlinf.utils.processes.pooled_process", env=env, max_output=self._max_output
            )
        try:
            told = json.loads(self._child.ask(hello, self._start_timeout))
            if "failed" in told:
                raise PoolFailed(told["failed"])
            enforced = str(told["enforced"])
        except PoolFailed:
            self._drop()
            raise
        except Exception as error:
            words = self._child.last_words
            self._drop()
            raise PoolFailed(f"{self._spec.target}: {_in_words(error)}. {words}") from error
        if not self.ready.done():
            self.ready.set_result(enforced)

    def _drop(self) -> None:
        with self._ending:
            if self._child is not None:
                self._child.kill()
                self._child = None


def _read(answer: bytes) -> tuple[Outcome, bool]:
    """Return what a process says of a job, and whether it wants to be replaced.

    Raises:
        ChildFailed: it says something else.
    """
    told = json.loads(answer)
    if not isinstance(told, dict) or told.get("status") not in get_args(Status):
        raise ChildFailed(f"answered with {answer[:200]!r}")
    outcome = Outcome(told["status"], told.get("value"), str(told.get("message", "")))
    return outcome, bool(told.get("leaving"))


def _in_words(error: Exception) -> str:
    ours = isinstance(error, ChildFailed | PoolFailed)
    return str(error) if ours else f"{type(error).__name__}: {error}"
