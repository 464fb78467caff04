"""The Ray actor around a worker: starts it, runs its methods, and reports its exceptions."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from rlinf.scheduler import trace
from rlinf.scheduler.errors import CallCancelled
from rlinf.scheduler.spec import WorkerSpec
from rlinf.scheduler.worker import timers
from rlinf.scheduler.worker.cancelling import CANCEL_SIGNAL, Coroutine
from rlinf.scheduler.worker.logs import note
from rlinf.scheduler.worker.remote_error import WorkerRaised, is_own_fault, pack, user_part
from rlinf.scheduler.worker.runtime import WorkerRuntime, set_current_call

_KEPT_TIMERS = 256
"""Calls whose timers a worker keeps for whoever asks."""


class WorkerHost:
    """Actor class of workers without coroutine methods."""

    def __init__(self, spec: WorkerSpec, payload: bytes, restarted: bool | None = None):
        self._spec = spec
        self._payload = payload
        self._worker: Any = None
        self._runtime: WorkerRuntime | None = None
        self._timers: dict[str, dict[str, float]] = {}
        self._over = False
        if _was_restarted() if restarted is None else restarted:
            self._boot()

    def rlinf_start(self) -> Any:
        """Build the worker; its exceptions travel like those of any call."""
        self._guard("__init__", self._boot)
        return self._runtime.info  # type: ignore[union-attr]

    def _boot(self) -> None:
        runtime = self._runtime = WorkerRuntime(self._spec)
        if threading.current_thread() is threading.main_thread():
            signal.signal(CANCEL_SIGNAL, runtime.cancel.on_signal)
        runtime.register()
        runtime.record.rest("running __init__")
        from rlinf.config.plugins import load_extension

        load_extension()
        cls, args, kwargs = pickle.loads(self._payload)
        self._worker = cls(*args, **kwargs)
        self._payload = b""
        runtime.registry.ask("ready")
        runtime.record.rest("idle")
        runtime.endpoint.warm_up()

    def _run(self, call: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        runtime = self._runtime
        assert runtime is not None
        begin = time.perf_counter()
        spent = timers.open_call()
        set_current_call(call)
        token = runtime.record.enter(f"running {method}()")
        try:
            function = functools.partial(getattr(self._worker, method), *args, **kwargs)
            return runtime.cancel.run(call, method, function)
        finally:
            runtime.record.leave(token)
            self._keep_timers(call, method, begin, spent)

    def _keep_timers(self, call: str, method: str, begin: float, spent: dict[str, float]) -> None:
        end = time.perf_counter()
        spent.setdefault(method, end - begin)
        recorder = trace.current()
        if recorder is not None:
            recorder.add(method, trace.CALL, begin, end)
        self._timers[call] = spent
        if len(self._timers) > _KEPT_TIMERS:
            del self._timers[next(iter(self._timers))]

    def rlinf_timers(self, call: str) -> dict[str, float]:
        """Return the seconds by tag of a call that has ended; empty if too many came after it."""
        return self._timers.pop(call, {})

    def rlinf_info(self) -> Any:
        """Return the worker's entry in the registry, with the number of its restarts."""
        return self._runtime.info  # type: ignore[union-attr]

    def rlinf_begin_exchange(self, number: int) -> None:
        """Give up what the worker exchanged with others so far; see `Exchange`."""
        self._runtime.exchange.begin(number)  # type: ignore[union-attr]

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
        tells = self._runtime is not None and not self._over
        if self._spec.run.debug and tells and is_own_fault(error):
            self._runtime.debugger.post_mortem(error, user_part(error.__traceback__))
        envelope = pack(error, self._spec.name, method)
        if tells and not isinstance(error, CallCancelled):
            note(
                self._spec.name,
                logging.ERROR,
                f"{method}() raised\n{envelope.report.traceback.rstrip()}",
            )
            self._runtime.registry.notify("raised", report=envelope.report)
        return envelope

    def rlinf_shut_down(self) -> None:
        """Let the worker close what it has open."""
        self._worker.on_shutdown()

    def forget_run(self) -> None:
        """Tell nobody any more what the worker raises; its run has ended."""
        self._over = True

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

    async def rlinf_start(self) -> Any:
        """Build the worker in its thread."""
        return await self._in_thread(super().rlinf_start)

    async def run_coroutine(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a coroutine method on the loop."""
        runtime = self._runtime
        assert runtime is not None
        call = _call_id()
        begin = time.perf_counter()
        spent = timers.open_call()
        set_current_call(call)
        token = runtime.record.enter(f"running {method}()")
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            # Looked at again on the loop: the call may have ended, and its task be Ray's once more.
            loop.call_soon_threadsafe(lambda: runtime.cancel.asked(call) and task.cancel())

        try:
            runtime.cancel.begin(call, method, Coroutine(cancel))
            value = await getattr(self._worker, method)(*args, **kwargs)
            return runtime.cancel.checked(call, method, value)
        except asyncio.CancelledError:
            raise self._envelope(method, CallCancelled(f"{method}() was cancelled")) from None
        except BaseException as error:
            raise self._envelope(method, error) from None
        finally:
            runtime.cancel.end(call)
            runtime.record.leave(token)
            self._keep_timers(call, method, begin, spent)

    async def run_plain(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a plain method in the worker's thread."""
        return await self._in_thread(
            self._guard, method, self._run, _call_id(), method, args, kwargs
        )

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: context.run(function, *args))

    async def rlinf_shut_down(self) -> None:
        """Let the worker close what it has open."""
        await self._in_thread(super().rlinf_shut_down)


def _was_restarted() -> bool:
    """Return whether Ray has started this actor before; then nobody will call `start` again."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ray.get_runtime_context().was_current_actor_reconstructed


def actor_class(worker_cls: type) -> type:
    """Return the actor class of a worker class: a host with the same public methods.

    Each method of the worker is one of the actor, so that a call costs what a call of a plain Ray
    actor costs: nothing but the arguments travels.
    """
    names = public_methods(worker_cls)
    if not needs_loop(worker_cls):
        methods = {name: _plain_forwarder(name) for name in names}
        return type(worker_cls.__name__, (WorkerHost,), methods)
    methods = {
        name: _coroutine_forwarder(name, inspect.iscoroutinefunction(getattr(worker_cls, name)))
        for name in names
    }
    return type(worker_cls.__name__, (AsyncWorkerHost,), methods)


def _plain_forwarder(name: str) -> Callable[..., Any]:
    def method(self: WorkerHost, *args: Any, **kwargs: Any) -> Any:
        return self._guard(name, self._run, _call_id(), name, args, kwargs)

    method.__name__ = name
    return method


def _coroutine_forwarder(name: str, is_coroutine: bool) -> Callable[..., Any]:
    async def method(self: AsyncWorkerHost, *args: Any, **kwargs: Any) -> Any:
        run = self.run_coroutine if is_coroutine else self.run_plain
        return await run(name, args, kwargs)

    method.__name__ = name
    return method


_CALL_ID: ContextVar[str | None] = ContextVar("rlinf_call_id", default=None)


def set_call_id(call: str) -> None:
    """Tell the id of the running call, where it is not Ray that runs it."""
    _CALL_ID.set(call)


def _call_id() -> str:
    """Id of the running call: that of Ray's task, which the caller knows, too."""
    known = _CALL_ID.get()
    if known is not None:
        return known
    import ray

    return ray.get_runtime_context().get_task_id()


def needs_loop(cls: type) -> bool:
    """Return whether a worker class has coroutine methods and so needs an event loop."""
    members = [getattr(cls, name) for name in public_methods(cls)]
    return any(
        inspect.iscoroutinefunction(inspect.unwrap(member)) or inspect.iscoroutinefunction(member)
        for member in members
    )


def public_methods(cls: type) -> list[str]:
    """Return the names of the methods that can be called on a group of a worker class."""
    names = [name for name in dir(cls) if not name.startswith("_")]
    # Statically: a descriptor may load torch.
    return [name for name in names if _is_method(inspect.getattr_static(cls, name))]


def _is_method(member: Any) -> bool:
    return callable(member) or isinstance(
        member, (staticmethod, classmethod, functools.partialmethod)
    )
