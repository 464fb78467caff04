"""Actors that are threads of this process: what Ray's actors are otherwise."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import queue
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rlinf.scheduler.current import Scope, set_scope
from rlinf.scheduler.debug.debugger import DriverDebugger
from rlinf.scheduler.inline.turns import Turns, TurnSelector
from rlinf.scheduler.spec import LaunchOptions, WorkerSpec
from rlinf.scheduler.worker.backend import CallFailed, CallRaised, NotYet
from rlinf.scheduler.worker.host import AsyncWorkerHost, set_call_id
from rlinf.scheduler.worker.remote_error import WorkerRaised


class InlineCall:
    """A call of an actor; its value is pickled, as if it came from another process.

    Attributes:
        id: names it.
        future: gets the value.
    """

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.future: Future[bytes] = Future()


class InlineActor:
    """A worker that lives in threads of this process.

    Args:
        host_cls: actor class of the worker; see `actor_class`.
        spec: what the worker is told.
        payload: pickled class and arguments of its constructor.
        options: how it is started.
        backend: where it is found.
    """

    def __init__(
        self,
        host_cls: type,
        spec: WorkerSpec,
        payload: bytes,
        options: LaunchOptions,
        backend: InlineBackend,
    ):
        self._scope = Scope(spec.name, backend)
        self._turns = backend.turns
        if issubclass(host_cls, AsyncWorkerHost):
            host_cls = type(host_cls.__name__, (_TurnsOfThread, host_cls), {"turns": self._turns})
            self._threads: _Threads = _LoopThread(spec.name, self._scope, self._turns)
        else:
            count = options.max_concurrency or 1
            self._threads = _PlainThreads(spec.name, count, self._scope, self._turns)
        self._host = host_cls(spec, payload, False)

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    def start_call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InlineCall:
        """Start a method; its arguments are copied."""
        import cloudpickle

        call = InlineCall()
        data = cloudpickle.dumps((args, kwargs))
        self._threads.start(call, lambda: self._invoke(method, data))
        return call

    def _invoke(self, method: str, data: bytes) -> Any:
        import cloudpickle

        args, kwargs = cloudpickle.loads(data)
        return getattr(self._host, method)(*args, **kwargs)

    def end(self) -> None:
        """Leave the run; what a call that goes on comes to is of no interest any more."""
        self._host.forget_run()
        self._threads.end()
        if self._scope.runtime is not None:
            self._scope.runtime.close()


class _Method:
    """A method of an actor, with Ray's way to call it."""

    def __init__(self, actor: InlineActor, name: str):
        self._actor = actor
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> InlineCall:
        return self._actor.start_call(self._name, args, kwargs)


class _TurnsOfThread:
    """Lets the thread of an asynchronous worker take turns as well."""

    turns: Turns

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await super()._in_thread(self.turns.run, function, *args)  # type: ignore[misc]


class _Threads:
    """Where the calls of an actor run."""

    def start(self, call: InlineCall, function: Callable[[], Any]) -> None:
        """Start a call."""
        raise NotImplementedError

    def end(self) -> None:
        """Start no more calls."""
        raise NotImplementedError


class _PlainThreads(_Threads):
    """Threads for methods that are no coroutines, one unless the group allows more.

    They do not keep the process alive: one of them may wait for what never comes.
    """

    def __init__(self, name: str, count: int, scope: Scope, turns: Turns):
        self._scope, self._turns = scope, turns
        self._calls: queue.SimpleQueue[tuple[InlineCall, Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        set_scope(self._scope)
        while (entry := self._calls.get()) is not None:
            call, function = entry
            set_call_id(call.id)
            with self._turns.taken():
                try:
                    outcome = _packed(function())
                except BaseException as error:
                    call.future.set_exception(error)
                else:
                    call.future.set_result(outcome)

    def start(self, call: InlineCall, function: Callable[[], Any]) -> None:
        self._calls.put((call, function))

    def end(self) -> None:
        for _ in range(self._count):
            self._calls.put(None)


class _LoopThread(_Threads):
    """A thread with an event loop, which runs while nobody else does."""

    def __init__(self, name: str, scope: Scope, turns: Turns):
        self._scope, self._turns = scope, turns
        self._loop = asyncio.SelectorEventLoop(TurnSelector(turns))
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        set_scope(self._scope)
        asyncio.set_event_loop(self._loop)
        with self._turns.taken():
            self._loop.run_forever()

    def start(self, call: InlineCall, function: Callable[[], Any]) -> None:
        async def run() -> None:
            set_call_id(call.id)
            try:
                value = function()
                outcome = _packed(await value if inspect.isawaitable(value) else value)
            except BaseException as error:
                call.future.set_exception(error)
            else:
                call.future.set_result(outcome)

        def begin() -> None:
            set_scope(self._scope)
            self._loop.create_task(run())

        self._loop.call_soon_threadsafe(begin)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class InlineBackend:
    """Calls of actors in this process.

    Attributes:
        turns: whose turn it is.
        actors: the actors that live, by name.
        debugger: opens where a worker raises.
    """

    debugger: DriverDebugger

    def __init__(self) -> None:
        self.turns = Turns()
        self.actors: dict[str, InlineActor] = {}

    def get(self, refs: list[InlineCall], timeout: float | None = None) -> list[Any]:
        """See `CallBackend.get`."""
        futures = [ref.future for ref in refs]
        first = concurrent.futures.FIRST_EXCEPTION
        with self.turns.given_up():
            done, left = concurrent.futures.wait(futures, timeout, first)
        failed = [future for future in futures if future in done and future.exception()]
        if failed:
            raise _failure(failed[0].exception()) from failed[0].exception()
        if left:
            raise NotYet(f"{len(left)} of {len(refs)} calls have not ended")
        return [_unpacked(future.result()) for future in futures]

    def wait(self, refs: list[InlineCall], count: int, timeout: float | None) -> list[Any]:
        """See `CallBackend.wait`."""
        every = count == len(refs)
        when = concurrent.futures.ALL_COMPLETED if every else concurrent.futures.FIRST_COMPLETED
        with self.turns.given_up():
            done, _ = concurrent.futures.wait([ref.future for ref in refs], timeout, when)
        return [ref for ref in refs if ref.future in done][:count]

    async def result(self, ref: InlineCall) -> Any:
        """See `CallBackend.result`."""
        try:
            return _unpacked(await asyncio.wrap_future(ref.future))
        except Exception as error:
            raise _failure(error) from error

    def call_id(self, ref: InlineCall) -> str:
        """See `CallBackend.call_id`."""
        return ref.id

    def find(self, name: str, namespace: str) -> InlineActor:
        """See `CallBackend.find`."""
        return self.actors[name]

    def end(self, actors: list[InlineActor], for_good: bool = True) -> None:
        """See `CallBackend.end`; nothing is started anew here."""
        for actor in actors:
            actor.end()


def _failure(error: BaseException | None) -> CallFailed:
    return CallRaised(error) if isinstance(error, WorkerRaised) else CallFailed(str(error))


def _packed(value: Any) -> bytes:
    import cloudpickle

    return cloudpickle.dumps(value)


def _unpacked(data: bytes) -> Any:
    import cloudpickle

    return cloudpickle.loads(data)
