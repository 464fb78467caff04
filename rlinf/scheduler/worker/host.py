"""The Ray actor around a worker: starts it, runs its methods, and carries its exceptions home."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlinf.scheduler.errors import CallCancelled
from rlinf.scheduler.worker import timers
from rlinf.scheduler.worker.remote_error import WorkerRaised, pack
from rlinf.scheduler.worker.runtime import WorkerRuntime, set_current_call
from rlinf.scheduler.worker.spec import WorkerSpec

CANCEL_SIGNAL = signal.SIGUSR1

Outcome = tuple[Any, dict[str, float]]
"""What a call returns: the method's value, and its timers with the call's own among them."""


class WorkerHost:
    """Actor class of workers without coroutine methods."""

    def __init__(self, spec: WorkerSpec, payload: bytes, restarted: bool | None = None):
        self._spec = spec
        self._payload = payload
        self._worker: Any = None
        self._runtime: WorkerRuntime | None = None
        if _was_restarted() if restarted is None else restarted:
            self._boot()

    def start(self) -> Outcome:
        """Builds the worker; its exceptions travel like those of any call."""
        self._guard("__init__", self._boot)
        return self._runtime.info, {}  # type: ignore[union-attr]

    def _boot(self) -> None:
        runtime = self._runtime = WorkerRuntime(self._spec)
        if threading.current_thread() is threading.main_thread():
            signal.signal(CANCEL_SIGNAL, _on_cancel_signal)
        runtime.register()
        runtime.box.rest("running __init__")
        from rlinf.scheduler.worker.worker import load_extension

        load_extension()
        cls, args, kwargs = pickle.loads(self._payload)
        self._worker = cls(*args, **kwargs)
        self._payload = b""
        runtime.registry.ask("ready")
        runtime.box.rest("idle")
        runtime.endpoint.warm_up()

    def call(
        self, call: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        """Runs a method of the worker."""
        return self._guard(method, self._run, call, method, args, kwargs)

    def _run(
        self, call: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        runtime = self._runtime
        assert runtime is not None
        begin = time.perf_counter()
        spent = timers.open_call()
        set_current_call(call)
        token = runtime.box.enter(f"running {method}()")
        try:
            if not runtime.cancel.begin(call, _interrupter(threading.current_thread())):
                raise CallCancelled(f"{method}() was cancelled before it began")
            value = getattr(self._worker, method)(*args, **kwargs)
        finally:
            runtime.cancel.end(call)
            runtime.box.leave(token)
        spent.setdefault(method, time.perf_counter() - begin)
        return value, spent

    def _guard(self, method: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except WorkerRaised:
            raise
        except BaseException as error:
            raise self._envelope(method, error) from None

    def _envelope(self, method: str, error: BaseException) -> WorkerRaised:
        if isinstance(error, SystemExit):
            # Leaving the interpreter would look like a crash; it is an error of the method.
            error = RuntimeError(f"{method}() called sys.exit({error.code!r})").with_traceback(
                error.__traceback__
            )
        envelope = pack(error, self._spec.name, method)
        if self._runtime is not None and not isinstance(error, CallCancelled):
            self._runtime.report(method, error, envelope.traceback_text)
        return envelope

    def shut_down(self) -> None:
        """Lets the worker close what it has open."""
        self._worker.on_shutdown()

    def __repr__(self) -> str:
        return self._spec.name


class AsyncWorkerHost(WorkerHost):
    """Actor class of workers with coroutine methods.

    Coroutines run on the actor's event loop. Everything else, `__init__` included, runs in one
    thread of its own, so that the loop stays free and thread-bound libraries see a single thread.
    """

    def __init__(self, spec: WorkerSpec, payload: bytes, restarted: bool | None = None):
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlinf-worker")
        super().__init__(spec, payload, restarted)

    async def start(self) -> Outcome:  # type: ignore[override]
        """Builds the worker in its thread."""
        return await self._in_thread(super().start)

    async def call(
        self, call: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Outcome:
        """Runs a method: a coroutine on the loop, anything else in the worker's thread."""
        if not inspect.iscoroutinefunction(getattr(self._worker, method)):
            return await self._in_thread(super().call, call, method, args, kwargs)
        runtime = self._runtime
        assert runtime is not None
        begin = time.perf_counter()
        spent = timers.open_call()
        set_current_call(call)
        token = runtime.box.enter(f"running {method}()")
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        try:
            if not runtime.cancel.begin(call, lambda: loop.call_soon_threadsafe(task.cancel)):
                raise CallCancelled(f"{method}() was cancelled before it began")
            value = await getattr(self._worker, method)(*args, **kwargs)
        except asyncio.CancelledError:
            raise self._envelope(method, CallCancelled(f"{method}() was cancelled")) from None
        except BaseException as error:
            raise self._envelope(method, error) from None
        finally:
            runtime.cancel.end(call)
            runtime.box.leave(token)
        spent.setdefault(method, time.perf_counter() - begin)
        return value, spent

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: context.run(function, *args))

    async def shut_down(self) -> None:
        """Lets the worker close what it has open."""
        await self._in_thread(super().shut_down)


def _was_restarted() -> bool:
    """Whether Ray has started this actor before; then nobody will call `start` again."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ray.get_runtime_context().was_current_actor_reconstructed


def _interrupter(thread: threading.Thread) -> Callable[[], None]:
    """What raises CallCancelled in the thread of a running call."""

    def interrupt() -> None:
        if thread is threading.main_thread():
            # A signal also wakes the thread from a blocking system call.
            signal.pthread_kill(thread.ident, CANCEL_SIGNAL)  # type: ignore[arg-type]
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(CallCancelled)
            )

    return interrupt


def _on_cancel_signal(signum: int, frame: Any) -> None:
    from rlinf.scheduler.worker.runtime import current_call, current_runtime

    runtime, call = current_runtime(), current_call()
    if isinstance(runtime, WorkerRuntime) and call is not None and runtime.cancel.asked(call):
        raise CallCancelled("the call was cancelled")


def needs_loop(cls: type) -> bool:
    """Whether a worker class has coroutine methods and so needs an event loop."""
    return any(
        inspect.iscoroutinefunction(inspect.unwrap(member)) or inspect.iscoroutinefunction(member)
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    )
