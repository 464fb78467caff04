"""How calls reach workers and come back: by Ray, or in this very process."""

from __future__ import annotations

from typing import Any, Protocol

from rlinf.scheduler.worker.remote_error import WorkerRaised


class CallFailed(Exception):
    """A rank has no value for its call; its cause, if any, is what the backend says."""


class NotYet(CallFailed):
    """The call has not ended in time."""


class CallRaised(CallFailed):
    """The method raised.

    Attributes:
        envelope: the exception.
    """

    def __init__(self, envelope: WorkerRaised):
        super().__init__(str(envelope))
        self.envelope = envelope


class WorkerLost(CallFailed):
    """The worker has died."""


class WorkerUnavailable(WorkerLost):
    """The worker cannot be reached; it may be between two lives."""


class CallBackend(Protocol):
    """Starts nothing, but knows what becomes of the calls of actors; see `RayBackend`."""

    def get(self, refs: list[Any], timeout: float | None = None) -> list[Any]:
        """Wait for calls and return their values.

        Raises:
            CallFailed: one of them failed; the first that did, or the first of several.
        """

    def wait(self, refs: list[Any], count: int, timeout: float | None) -> list[Any]:
        """Wait until `count` of some calls have ended, well or badly; return those that have."""

    async def result(self, ref: Any) -> Any:
        """Do as `get` for one call, in a coroutine."""

    def call_id(self, ref: Any) -> str:
        """Return the id under which the worker knows a call."""

    def find(self, name: str, namespace: str) -> Any:
        """Return the actor of a worker."""

    def end(self, actors: list[Any], for_good: bool = True) -> None:
        """End actors, for good or until they are started anew; does not wait for it."""


class RayBackend:
    """Calls of Ray's actors."""

    def get(self, refs: list[Any], timeout: float | None = None) -> list[Any]:
        """See `CallBackend.get`."""
        import ray

        try:
            return ray.get(refs, timeout=timeout)
        except ray.exceptions.RayError as error:
            raise _translated(error) from error

    def wait(self, refs: list[Any], count: int, timeout: float | None) -> list[Any]:
        """See `CallBackend.wait`."""
        import ray

        return ray.wait(refs, num_returns=count, timeout=timeout)[0]

    async def result(self, ref: Any) -> Any:
        """See `CallBackend.result`."""
        import ray

        try:
            return await ref
        except ray.exceptions.RayError as error:
            raise _translated(error) from error

    def call_id(self, ref: Any) -> str:
        """See `CallBackend.call_id`: that of Ray's task."""
        return ref.task_id().hex()

    def find(self, name: str, namespace: str) -> Any:
        """See `CallBackend.find`."""
        import ray

        return ray.get_actor(name, namespace=namespace)

    def end(self, actors: list[Any], for_good: bool = True) -> None:
        """See `CallBackend.end`."""
        import ray

        for actor in actors:
            ray.kill(actor, no_restart=for_good)


def _translated(error: Any) -> CallFailed:
    """Return what an error of Ray means for a call."""
    from ray import exceptions

    if isinstance(error, exceptions.GetTimeoutError):
        return NotYet(str(error))
    if isinstance(error, exceptions.RayTaskError) and isinstance(error.cause, WorkerRaised):
        return CallRaised(error.cause)
    if isinstance(error, exceptions.ActorUnavailableError):
        return WorkerUnavailable(str(error))
    if isinstance(error, (exceptions.RayActorError, exceptions.WorkerCrashedError)):
        return WorkerLost(str(error))
    return CallFailed(str(error))
