"""The run that this process belongs to: noted by whoever joins it, asked by everybody else."""

from __future__ import annotations

import os
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
    """

    name: str
    run: RunSpec
    registry: RegistryClient
    channels: Any
    supervisor: Any


_current: Runtime | None = None


def current_runtime() -> Runtime:
    """Return the runtime of this process.

    Raises:
        RuntimeError: this process belongs to no run.
    """
    if _current is None:
        raise RuntimeError(
            "this process belongs to no run: create a Cluster first, or call this in a worker"
        )
    return _current


def has_runtime() -> bool:
    """Return whether this process belongs to a run."""
    return _current is not None


def set_current_runtime(runtime: Runtime | None) -> None:
    """Make a runtime that of this process; None leaves the run."""
    global _current
    _current = runtime


# A forked child of a process of the run is none itself.
os.register_at_fork(after_in_child=lambda: set_current_runtime(None))
