"""The handle of a group call: wait for it, look at it, cancel it, read its timers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlinf.scheduler import trace
from rlinf.scheduler.errors import CallCancelled, WaitTimeout, WorkerDied
from rlinf.scheduler.worker.pending import waiting
from rlinf.scheduler.worker.remote_error import WorkerRaised

if TYPE_CHECKING:
    from rlinf.scheduler.worker.launched import LaunchedGroup

_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "max": max,
    "min": min,
    "mean": statistics.fmean,
    "sum": sum,
}
# After one rank has failed, others of the call that fail because of it, or before it, show up soon.
_ECHO_SECONDS = 0.5


class WorkerGroupFuncResult:
    """A call that runs on some ranks of a group.

    Attributes:
        method: name of the method.
        ranks: ranks that run it, in the order of the results.
    """

    def __init__(self, group: LaunchedGroup, method: str, ranks: list[int], refs: list[Any]):
        self.method = method
        self.ranks = ranks
        self._group = group
        self._refs = refs
        self._outcomes: list[Any] | None = None
        self._durations: list[dict[str, float]] | None = None
        self._cancelled = False

    # -- waiting ------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Waits for all ranks and returns their values in rank order.

        Args:
            timeout: deadline in seconds; `cluster.timeouts.call` by default.

        Raises:
            WorkerDied: a worker of the call has died.
            WaitTimeout: the deadline passed; says what each missing rank is doing.
            CallCancelled: the call was cancelled.
            Exception: whatever the method raised, with the worker's traceback as its cause.
        """
        if self._outcomes is None:
            import ray

            if timeout is None:
                timeout = self._group.default_timeout
            begin = time.perf_counter()
            try:
                with waiting(lambda: (self,)):
                    self._outcomes = ray.get(self._refs, timeout=timeout)
                _record(self, begin)
            except ray.exceptions.GetTimeoutError:
                raise self._timeout(timeout) from None
            except ray.exceptions.RayError as error:
                failure = self._failure(error)
                self._group.told(failure)
                # The worker's own traceback is the cause; Ray's frames would only bury it.
                raise failure from failure.__cause__
        return list(self._outcomes or [])

    async def async_wait(self, timeout: float | None = None) -> list[Any]:
        """Like `wait`, for coroutines: the event loop goes on meanwhile."""
        if self._outcomes is None:
            import ray

            if timeout is None:
                timeout = self._group.default_timeout
            try:
                with waiting(lambda: (self,)):
                    outcomes = await asyncio.wait_for(asyncio.gather(*self._refs), timeout)
                self._outcomes = list(outcomes)
            except (asyncio.TimeoutError, TimeoutError):
                raise self._timeout(timeout) from None
            except ray.exceptions.RayError as error:
                loop = asyncio.get_running_loop()
                failure = await loop.run_in_executor(None, self._failure, error)
                self._group.told(failure)
                raise failure from failure.__cause__
        return list(self._outcomes or [])

    def __await__(self) -> Any:
        return self.async_wait().__await__()

    def done(self) -> bool:
        """Whether the call has ended on all ranks, well or badly."""
        return self._outcomes is not None or self.ended(timeout=0)

    @property
    def group(self) -> LaunchedGroup:
        """The group that runs it."""
        return self._group

    def ended(self, timeout: float) -> bool:
        """Waits until the call has ended on all ranks, well or badly; False if it has not."""
        import ray

        ready, _ = ray.wait(self._refs, num_returns=len(self._refs), timeout=timeout)
        return len(ready) == len(self._refs)

    def late(self, seconds: float) -> WaitTimeout:
        """The error that says which ranks have not ended after so many seconds."""
        return self._timeout(seconds)

    def cancel(self) -> None:
        """Asks all ranks to stop this call.

        A coroutine is cancelled, a plain method is interrupted at its next Python instruction or
        blocking system call, and a call that has not begun never does. `wait` then raises
        `CallCancelled`.
        """
        self._cancelled = True
        self._group.cancel_calls(self._call_ids())

    def _call_ids(self) -> dict[int, str]:
        """Id of the call on each rank: that of Ray's task."""
        return {r: ref.task_id().hex() for r, ref in zip(self.ranks, self._refs, strict=True)}

    # -- durations ----------------------------------------------------------------------------

    def consume_duration(self, reduction: str = "max") -> float:
        """Seconds that the method took, reduced over the ranks; waits for the call."""
        return _reduce([d[self.method] for d in self._timers()], reduction)

    def consume_durations(
        self, reduction: str = "max", return_per_rank: bool = False
    ) -> dict[str, float] | tuple[dict[str, float], list[dict[str, float]]]:
        """Seconds by timer tag, reduced over the ranks; waits for the call.

        Args:
            reduction: "max", "min", "mean" or "sum".
            return_per_rank: whether to return the timers of each rank as well.
        """
        per_rank = self._timers()
        tags = sorted({tag for durations in per_rank for tag in durations})
        reduced = {tag: _reduce([d[tag] for d in per_rank if tag in d], reduction) for tag in tags}
        return (reduced, [dict(d) for d in per_rank]) if return_per_rank else reduced

    def _timers(self) -> list[dict[str, float]]:
        if self._durations is None:
            self.wait()
            self._durations = self._group.timers_of(self._call_ids())
        return self._durations

    # -- outcome ------------------------------------------------------------------------------

    def _failure(self, error: Exception) -> BaseException:
        """The exception to raise: a death explains what the other ranks say, so it goes first."""
        import ray

        ray.wait(self._refs, num_returns=len(self._refs), timeout=_ECHO_SECONDS)
        died, raised = self._failures()
        if died:
            return self._first(died)
        for envelope in raised:
            if self._cancelled and envelope.type_name == CallCancelled.__name__:
                return CallCancelled(f"{self._group.name}.{self.method}() was cancelled")
        if raised:
            return raised[0].unpack()
        return error

    def deaths(self) -> list[WorkerDied]:
        """The ranks that died in this call, as far as it has ended."""
        return self._failures()[0]

    def _failures(self) -> tuple[list[WorkerDied], list[WorkerRaised]]:
        """What went wrong on the ranks that have ended: deaths, and exceptions of the method."""
        import ray

        died: list[tuple[int, Exception]] = []
        raised: list[WorkerRaised] = []
        for rank, ref in zip(self.ranks, self._refs, strict=True):
            ready, _ = ray.wait([ref], timeout=0)
            if not ready:
                continue
            try:
                ray.get(ref)
            except ray.exceptions.RayTaskError as failure:
                if isinstance(failure.cause, WorkerRaised):
                    raised.append(failure.cause)
            except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError) as failure:
                died.append((rank, failure))
            except ray.exceptions.TaskCancelledError:
                continue
        return [self._group.autopsy(rank, str(e)) for rank, e in died], raised

    def _first(self, deaths: list[WorkerDied]) -> WorkerDied:
        order = self._group.death_order()
        return min(deaths, key=lambda d: order.get(d.worker, len(order)))

    def _timeout(self, timeout: float | None) -> WaitTimeout:
        import ray

        # Not 0: that asks before Ray has looked.
        ready, _ = ray.wait(self._refs, num_returns=len(self._refs), timeout=0.1)
        missing = [
            r for r, ref in zip(self.ranks, self._refs, strict=True) if ref not in set(ready)
        ]
        return self._group.describe_timeout(self.method, missing, timeout)

    def __repr__(self) -> str:
        state = "done" if self.done() else "running"
        return f"<{self._group.name}.{self.method}() on ranks {self.ranks}: {state}>"


def _reduce(values: list[float], reduction: str) -> float:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is not one of {sorted(_REDUCTIONS)}")
    return _REDUCTIONS[reduction](values)


def wait_all(*handles: WorkerGroupFuncResult, timeout: float | None = None) -> list[list[Any]]:
    """Waits for several calls and raises the failure of whichever fails first.

    Waiting for the handles one after the other would miss a failure in a later one for as long as
    an earlier one hangs because of it.
    """
    import ray

    limits = [timeout] if timeout is not None else [h._group.default_timeout for h in handles]
    limit = min((value for value in limits if value is not None), default=None)
    deadline = None if limit is None else time.monotonic() + limit
    begin = time.perf_counter()
    last: WorkerGroupFuncResult | None = None
    owner = {ref: handle for handle in handles for ref in handle._refs}
    left = list(owner)
    with waiting(lambda: dict.fromkeys(owner[ref] for ref in left)):
        while left:
            room = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, left = ray.wait(left, num_returns=1, timeout=room)
            if not ready:
                raise owner[left[0]]._timeout(limit)
            for ref in ready:
                last = owner[ref]
                try:
                    ray.get(ref)
                except ray.exceptions.RayError:
                    owner[ref].wait()
    if last is not None:
        _record(last, begin)
    return [handle.wait() for handle in handles]


def wait_beside(
    handle: WorkerGroupFuncResult,
    others: Sequence[WorkerGroupFuncResult],
    timeout: float | None = None,
) -> list[Any]:
    """Waits for one call while others go on; raises if one of those fails meanwhile.

    Args:
        handle: the call to wait for.
        others: calls that it depends on, such as services that run as long as the run does.
        timeout: deadline in seconds; `cluster.timeouts.call` by default.

    Returns:
        What the call returned, by rank.
    """
    import ray

    limit = handle._group.default_timeout if timeout is None else timeout
    deadline = None if limit is None else time.monotonic() + limit
    owner = {ref: other for other in others for ref in other._refs}
    own = list(handle._refs)
    watched = list(owner)
    begin = time.perf_counter()
    while own:
        room = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _ = ray.wait(own + watched, num_returns=1, timeout=room)
        if not ready:
            raise handle._timeout(limit)
        for ref in ready:
            if ref in owner:
                watched.remove(ref)
                try:
                    ray.get(ref)
                except ray.exceptions.RayError:
                    owner[ref].wait()
            else:
                own.remove(ref)
    _record(handle, begin)
    return handle.wait()


def _record(handle: WorkerGroupFuncResult, begin: float) -> None:
    """Notes in the trace how long this process waited for a call."""
    recorder, end = trace.current(), time.perf_counter()
    if recorder is not None and end - begin > trace.SHORTEST_WAIT:
        recorder.add(f"{handle._group.name}.{handle.method}()", trace.WAIT, begin, end)
