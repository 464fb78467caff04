"""The run that this process belongs to: noted by whoever joins it, asked by everybody else."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rlinf.scheduler.registry.client import RegistryClient
    from rlinf.scheduler.spec import RunSpec


class Runtime(Protocol):
    """What everybody may ask of it; see `rlinf.scheduler.worker.runtime.ProcessRuntime`.

    Attributes:
        name: name of this process in the run.
        run: what all processes of the run share.
        registry: the connection to the registry.
        channels: this process's side of all channels.
        supervisor: what is known of workers that fail.
        backend: how calls of workers come back.
    """

    name: str
    run: RunSpec
    registry: RegistryClient
    channels: Any
    supervisor: Any
    backend: Any


class Scope:
    """What belongs to one worker, where several live in one process.

    Attributes:
        name: the worker.
        backend: how calls of the workers of this process come back.
        runtime: its runtime; None before it has one.
    """

    def __init__(self, name: str, backend: Any):
        self.name = name
        self.backend = backend
        self.runtime: Runtime | None = None


_current: Runtime | None = None
_scope: ContextVar[Scope | None] = ContextVar("rlinf_scope", default=None)


def current_scope() -> Scope | None:
    """Return the scope of the worker that runs here; None if it has a process of its own."""
    return _scope.get()


def set_scope(scope: Scope) -> None:
    """Let this thread, and what it starts, belong to a worker."""
    _scope.set(scope)


def _own() -> Runtime | None:
    scope = _scope.get()
    return _current if scope is None else scope.runtime


def current_runtime() -> Runtime:
    """Return the runtime of this process.

    Raises:
        RuntimeError: this process belongs to no run.
    """
    runtime = _own()
    if runtime is None:
        raise RuntimeError(
            "this process belongs to no run: create a Cluster first, or call this in a worker"
        )
    return runtime


def has_runtime() -> bool:
    """Return whether this process belongs to a run."""
    return _own() is not None


def set_current_runtime(runtime: Runtime | None) -> None:
    """Make a runtime that of this process, or of the worker that runs here; None leaves the run."""
    global _current
    scope = _scope.get()
    if scope is None:
        _current = runtime
    else:
        scope.runtime = runtime


# A forked child of a process of the run is none itself.
os.register_at_fork(after_in_child=lambda: set_current_runtime(None))
