"""Turns: one thread of all workers runs at a time, and finds its process as it left it."""

from __future__ import annotations

import os
import random
import selectors
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rlinf.scheduler.current import Scope, current_scope
from rlinf.scheduler.net import interrupts
from rlinf.scheduler.worker.worker import Worker
from rlinf.utils import logging

_THREADS = "OMP_NUM_THREADS"
_FRESH_TORCH_SEED = 67280421310721
"""Seed of torch's generator in a new process."""


class Turns:
    """Lets one of several threads run; the others wait until it waits for something.

    What a process has once and workers change (random generators, environment variables, torch's
    number of threads, the current worker) is put aside for each worker and brought back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._states: dict[Scope | None, _ProcessState] = {}
        self._torch_threads: dict[Scope | None, int] = {}
        self._last: Scope | None = None
        self._over = False

    def begin(self) -> None:
        """Let the driver's thread, which calls this, have the first turn."""
        self._lock.acquire()
        self._holder = threading.get_ident()
        self._last = current_scope()
        interrupts.around_waits = self.given_up

    def end(self) -> None:
        """Let threads run as they like, as the driver that calls this has always done."""
        interrupts.around_waits = None
        self._switch_to(None)
        # Threads that have yet to end find the process as it is.
        self._over = True
        self._holder = None
        self._lock.release()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have a turn for as long as the block takes."""
        self._take()
        try:
            yield
        finally:
            self._give()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Let others run while this thread waits; it may be one that takes no turns."""
        if self._holder != threading.get_ident():
            yield
            return
        self._give()
        try:
            yield
        finally:
            self._take()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a turn."""
        with self.taken():
            return function(*args)

    def _take(self) -> None:
        interruption: BaseException | None = None
        while self._holder != threading.get_ident():
            try:
                self._lock.acquire()
                self._holder = threading.get_ident()
            except BaseException as error:
                # Ctrl-C: whoever it is meant for goes on with it when it is its turn.
                interruption = error
        self._switch_to(current_scope())
        if interruption is not None:
            raise interruption

    def _give(self) -> None:
        torch = _module("torch")
        if torch is not None:
            self._torch_threads[self._last] = torch.get_num_threads()
        self._holder = None
        self._lock.release()

    def _switch_to(self, scope: Scope | None) -> None:
        if self._over:
            return
        if scope is not self._last:
            self._states[self._last] = _ProcessState.now()
            (self._states.get(scope) or _ProcessState.fresh()).restore()
            self._last = scope
        # Each thread has a number of its own, and a worker may have several threads.
        torch = _module("torch")
        if torch is not None:
            wanted = self._torch_threads.get(scope, int(os.environ.get(_THREADS, "1")))
            if torch.get_num_threads() != wanted:
                torch.set_num_threads(wanted)


class TurnSelector(selectors.DefaultSelector):
    """Lets an event loop wait without keeping others from running.

    Args:
        turns: the turns that the loop's thread takes.
    """

    def __init__(self, turns: Turns):
        super().__init__()
        self._turns = turns

    def select(self, timeout: float | None = None) -> Any:
        """Wait for files; others run meanwhile, also if the loop only looks."""
        with self._turns.given_up():
            return super().select(timeout)


class _ProcessState:
    """What a process has once."""

    def __init__(self, env: dict[str, str], worker: Any, logger: Any):
        self._env = env
        self._worker = worker
        self._logger = logger
        self._random: Any = None
        self._numpy: Any = None
        self._torch: Any = None

    @classmethod
    def now(cls) -> _ProcessState:
        """Return the state of this process as it is."""
        torch, numpy = _module("torch"), _module("numpy")
        state = cls(dict(os.environ), Worker.current_worker, logging.current_logger())
        state._random = random.getstate()
        state._numpy = None if numpy is None else numpy.random.get_state()
        state._torch = None if torch is None else torch.get_rng_state()
        return state

    @classmethod
    def fresh(cls) -> _ProcessState:
        """Return the state of a new process, which Ray allows one thread."""
        return cls({_THREADS: "1"} | dict(os.environ), None, None)

    def restore(self) -> None:
        """Bring this process into the state."""
        for name in os.environ.keys() - self._env.keys():
            del os.environ[name]
        changed = {k: v for k, v in self._env.items() if os.environ.get(k) != v}
        os.environ.update(changed)
        Worker.current_worker = self._worker
        logging.set_logger(self._logger)
        torch, numpy = _module("torch"), _module("numpy")
        random.seed() if self._random is None else random.setstate(self._random)
        if numpy is not None:
            numpy.random.seed() if self._numpy is None else numpy.random.set_state(self._numpy)
        if torch is not None and self._torch is not None:
            torch.set_rng_state(self._torch)
        elif torch is not None:
            torch.manual_seed(_FRESH_TORCH_SEED)


def _module(name: str) -> Any:
    return sys.modules.get(name)
