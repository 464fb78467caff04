"""A thread for an engine that wants an event loop of its own and changes its process."""

from __future__ import annotations

import asyncio
import faulthandler
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

Value = TypeVar("Value")

_LOOK_SECONDS = 1.0
"""How often somebody who waits looks whether there is still something to wait for."""


class EngineThread:
    """Runs calls one after the other in a thread in which no event loop runs.

    An asynchronous worker calls its methods from a running loop. An engine that looks for a
    running loop would take that one, and could not wait in it.

    Args:
        name: Of the thread.
        alive: Called while a call takes long; raises if it will never return.
    """

    def __init__(self, name: str, alive: Callable[[], None] = lambda: None):
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._alive = alive
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Value], *args: Any, **keys: Any) -> Value:
        """Call a function in the thread; return what it returns, raise what it raises."""
        future: Future[Value] = Future()
        self._jobs.put((future, lambda: function(*args, **keys)))
        while not wait([future], timeout=_LOOK_SECONDS).done:
            self._alive()
        return future.result()

    def close(self) -> None:
        """End the thread when its calls are through."""
        self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


@contextmanager
def process_kept(own_variables: str) -> Iterator[None]:
    """Undo what a library changes in the process while it is imported and started.

    That is the policy of event loops, how processes are started, the environment, and whether
    thread pools are told of the end of the process.

    Args:
        own_variables: What the names of variables begin with that the library may keep.
    """
    policy = asyncio.get_event_loop_policy()
    method = multiprocessing.get_start_method(allow_none=True)
    register = threading._register_atexit  # type: ignore[attr-defined]
    variables = dict(os.environ)
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(policy)
        multiprocessing.set_start_method(method, force=True)
        threading._register_atexit = register  # type: ignore[attr-defined]
        for name in os.environ.keys() | variables.keys():
            if name.startswith(own_variables):
                continue
            if name in variables:
                os.environ[name] = variables[name]
            else:
                del os.environ[name]


def survive_sigquit() -> None:
    """Let SIGQUIT print where all threads are, and nothing else.

    SGLang's processes send it to whoever started them when they fail. Unhandled, it ends this
    process without a word; the failure itself is noticed by its owner.
    """
    # Unlike a handler of the signal module, this can be set from any thread.
    faulthandler.register(signal.SIGQUIT, sys.__stderr__, all_threads=True, chain=False)
