"""The handle of a group call: wait for it, look at it, cancel it, read its timers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from rlinf.scheduler import trace
from rlinf.scheduler.deadlines import Deadline, await_within
from rlinf.scheduler.errors import CallCancelled, WaitTimeout, WorkerDied
from rlinf.scheduler.failure.supervisor import Supervisor
from rlinf.scheduler.worker.backend import (
    CallBackend,
    CallFailed,
    CallRaised,
    NotYet,
    WorkerLost,
)
from rlinf.scheduler.worker.pending import waiting
from rlinf.scheduler.worker.remote_error import WorkerRaised

_REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "max": max,
    "min": min,
    "mean": statistics.fmean,
    "sum": sum,
}
# After one rank has failed, others of the call that fail because of it, or before it, show up soon.
_ECHO_SECONDS = 0.5
_EXPLAINED_SECONDS = 10.0
"""How long a lost connection may wait for the death that explains it."""
_LOOK_SECONDS = 0.05
_GLANCE_SECONDS = 1.0
"""Most calls end within these; for longer ones each rank is watched, so that none fails unseen."""
_PAUSE_PER_RANK = 2e-5
"""Pause between two looks at the ranks of a call, in seconds per rank.

A look takes a time in proportion to the number of ranks, so ranks that end one by one would cost
its square. With pauses longer than looks, the cost grows with the duration of the call instead.
"""


class CalledGroup(Protocol):
    """The workers that run a call; see `LaunchedGroup`."""

    name: str
    supervisor: Supervisor
    backend: CallBackend

    def name_of(self, rank: int) -> str:
        """Return the address of a rank as text."""

    def late(self, method: str, ranks: list[int], seconds: float | None) -> WaitTimeout:
        """Say who did not answer a call in time."""

    def timers_of(self, calls: dict[int, str]) -> list[dict[str, float]]:
        """Return the timers of calls that have ended, by rank in the order given."""


class WorkerGroupFuncResult:
    """A call that runs on some ranks of a group.

    Attributes:
        method: name of the method.
        ranks: ranks that run it, in the order of the results.
    """

    def __init__(self, group: CalledGroup, method: str, ranks: list[int], refs: list[Any]):
        self.method = method
        self.ranks = ranks
        self._group = group
        self._refs = refs
        self._outcomes: list[Any] | None = None
        self._durations: list[dict[str, float]] | None = None
        self._cancelled = False

    # -- waiting ------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait for all ranks and return their values in rank order.

        Args:
            timeout: deadline in seconds; `cluster.timeouts.call` by default.

        Raises:
            WorkerDied: a worker of the call has died.
            WaitTimeout: the deadline passed; says what each missing rank is doing.
            CallCancelled: the call was cancelled.
            Exception: whatever the method raised, with the worker's traceback as its cause.
        """
        if self._outcomes is None:
            if timeout is None:
                timeout = self._group.supervisor.timeout("call")
            begin, deadline = time.perf_counter(), Deadline(timeout)
            with waiting(lambda: (self,)):
                self._outcomes = self._glance(deadline)
                if self._outcomes is None:
                    _collect([self], [], deadline)
            _record(self, begin)
        return list(self._outcomes or [])

    def _glance(self, deadline: Deadline) -> list[Any] | None:
        """Return all values if they come soon; None if ranks have to be watched one by one."""
        left = deadline.left()
        if len(self._refs) > 1 and (left is None or left > _GLANCE_SECONDS):
            left = _GLANCE_SECONDS
        try:
            return self._group.backend.get(self._refs, left)
        except NotYet:
            return None
        except CallFailed as error:
            self._fail(self._failure(error))

    async def async_wait(self, timeout: float | None = None) -> list[Any]:
        """Like `wait`, for coroutines: the event loop goes on meanwhile."""
        if self._outcomes is None:
            if timeout is None:
                timeout = self._group.supervisor.timeout("call")
            together = asyncio.gather(*map(self._group.backend.result, self._refs))
            # Whoever stops to wait does not ask what came of it.
            together.add_done_callback(lambda done: done.cancelled() or done.exception())

            async def ended(seconds: float | None) -> bool:
                return together in (await asyncio.wait([together], timeout=seconds))[0]

            try:
                with waiting(lambda: (self,)):
                    if not await await_within(timeout, ended):
                        raise self.late(timeout)
                    self._outcomes = list(together.result())
            except CallFailed as error:
                loop = asyncio.get_running_loop()
                self._fail(await loop.run_in_executor(None, self._failure, error))
            finally:
                together.cancel()
        return list(self._outcomes or [])

    def __await__(self) -> Any:
        return self.async_wait().__await__()

    def done(self) -> bool:
        """Return whether the call has ended on all ranks, well or badly."""
        return self._outcomes is not None or self.ended(timeout=0)

    @property
    def group(self) -> CalledGroup:
        """The group that runs it."""
        return self._group

    def ended(self, timeout: float) -> bool:
        """Wait until the call has ended on all ranks, well or badly; False if it has not."""
        ready = self._group.backend.wait(self._refs, len(self._refs), timeout)
        return len(ready) == len(self._refs)

    def late(self, seconds: float | None) -> WaitTimeout:
        """Return the error that says which ranks have not ended after so many seconds."""
        # Not 0: that asks before Ray has looked.
        ready = set(self._group.backend.wait(self._refs, len(self._refs), 0.1))
        missing = [r for r, ref in zip(self.ranks, self._refs, strict=True) if ref not in ready]
        error = self._group.late(self.method, missing, seconds)
        self._group.supervisor.note_told(error)
        return error

    def cancel(self) -> None:
        """Ask all ranks to stop this call.

        A coroutine is cancelled, a plain method is interrupted at its next Python instruction or
        blocking system call, and a call that has not begun never does. `wait` then raises
        `CallCancelled`.
        """
        self._cancelled = True
        for rank, call in self._call_ids().items():
            self._group.supervisor.cancel(call, self._group.name_of(rank))

    def _call_ids(self) -> dict[int, str]:
        """Id of the call on each rank."""
        call_id = self._group.backend.call_id
        return {r: call_id(ref) for r, ref in zip(self.ranks, self._refs, strict=True)}

    # -- durations ----------------------------------------------------------------------------

    def consume_duration(self, reduction: str = "max") -> float:
        """Return the seconds that the method took, reduced over the ranks; waits for the call."""
        return _reduce([d[self.method] for d in self._timers()], reduction)

    def consume_durations(
        self, reduction: str = "max", return_per_rank: bool = False
    ) -> dict[str, float] | tuple[dict[str, float], list[dict[str, float]]]:
        """Return the seconds by timer tag, reduced over the ranks; waits for the call.

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

    def _value(self, ref: Any) -> Any:
        """Return what a rank that has ended returned.

        Raises the failure of the call if it failed.
        """
        try:
            return self._group.backend.get([ref])[0]
        except CallFailed as error:
            self._fail(self._failure(error))

    def _fail(self, failure: BaseException) -> NoReturn:
        self._group.supervisor.note_told(failure)
        # The worker's own traceback is the cause; Ray's frames would only bury it.
        raise failure from failure.__cause__

    def _failure(self, error: CallFailed) -> BaseException:
        """Return the exception to raise; a death goes first, since it explains the others."""
        ended = self._group.backend.wait(self._refs, len(self._refs), _ECHO_SECONDS)
        deadline = time.monotonic() + _EXPLAINED_SECONDS
        while True:
            died, raised = self._failures(ended)
            if died:
                return self._first_death(died)
            if self._cancelled and any(r.report.type == CallCancelled.__name__ for r in raised):
                return CallCancelled(f"{self._group.name}.{self.method}() was cancelled")
            if not raised:
                return error.__cause__ or error
            first = min(raised, key=_blame)
            failure = first.unpack()
            if isinstance(failure, WorkerDied):
                return self._group.supervisor.with_facts(failure)
            if not first.report.may_follow_from_lost_peer:
                return failure
            deaths = self._group.supervisor.deaths_behind(first.report)
            own = [death for death in deaths if death.group == self._group.name]
            if own:
                return own[0]
            if deaths or time.monotonic() > deadline:
                return failure
            time.sleep(_LOOK_SECONDS)
            ended = self._group.backend.wait(self._refs, len(self._refs), _LOOK_SECONDS)

    def deaths(self) -> list[WorkerDied]:
        """Return the ranks that died in this call, as far as it has ended."""
        ended = self._group.backend.wait(self._refs, len(self._refs), _LOOK_SECONDS)
        explain = self._group.supervisor.explain_death
        return [explain(name, said) for name, said in self._failures(ended)[0].items()]

    def _failures(self, ended: Sequence[Any]) -> tuple[dict[str, str], list[WorkerRaised]]:
        """Return what is said of the deaths, by worker, and the exceptions of ranks that ended."""
        backend, known = self._group.backend, set(ended)
        died: dict[str, str] = {}
        raised: list[WorkerRaised] = []
        for rank, ref in zip(self.ranks, self._refs, strict=True):
            if ref not in known:
                continue
            try:
                backend.get([ref])
            except CallRaised as failure:
                raised.append(failure.envelope)
            except WorkerLost as failure:
                died[self._group.name_of(rank)] = str(failure)
            except CallFailed:
                # Nothing is known of it that another rank could not tell better.
                continue
        return died, raised

    def _first_death(self, died: dict[str, str]) -> WorkerDied:
        """Explain the death that was noticed first, and no other: there may be very many."""
        supervisor = self._group.supervisor
        order = supervisor.death_order()
        first = min(died, key=lambda name: order.get(name, len(order)))
        explained = supervisor.explain_death(first, died[first])
        if first in order:
            return explained
        # None of them was known yet; explaining one has waited until some are.
        order = supervisor.death_order()
        known = min(died, key=lambda name: order.get(name, len(order)))
        return explained if known == first else supervisor.explain_death(known, died[known])

    def __repr__(self) -> str:
        state = "done" if self.done() else "running"
        return f"<{self._group.name}.{self.method}() on ranks {self.ranks}: {state}>"


def _reduce(values: list[float], reduction: str) -> float:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is not one of {sorted(_REDUCTIONS)}")
    return _REDUCTIONS[reduction](values)


def _blame(envelope: WorkerRaised) -> tuple[bool, float]:
    """Order of exceptions of one call: who lost a connection did so because of somebody else."""
    return envelope.report.may_follow_from_lost_peer, envelope.report.time


Ended = Callable[[WorkerGroupFuncResult, int], None]
"""Is told of each rank on which a call has ended."""


def wait_all(
    *handles: WorkerGroupFuncResult,
    timeout: float | None = None,
    beside: Sequence[WorkerGroupFuncResult] = (),
    ended: Ended | None = None,
) -> list[list[Any]]:
    """Wait for several calls and raise the failure of whichever fails first.

    Waiting for the handles one after the other would miss a failure in a later one for as long as
    an earlier one hangs because of it.

    Args:
        *handles: the calls to wait for.
        timeout: deadline in seconds; `cluster.timeouts.call` by default.
        beside: calls that go on meanwhile and must not fail.
        ended: is told of each rank on which one of all these calls has ended, while others go on.

    Returns:
        What the calls returned, by rank.
    """
    limits = [h._group.supervisor.timeout("call") if timeout is None else timeout for h in handles]
    limit = min((value for value in limits if value is not None), default=None)
    begin = time.perf_counter()
    last = _collect(handles, beside, Deadline(limit), ended)
    if last is not None:
        _record(last, begin)
    return [handle.wait() for handle in handles]


def wait_beside(
    handle: WorkerGroupFuncResult,
    others: Sequence[WorkerGroupFuncResult],
    timeout: float | None = None,
) -> list[Any]:
    """Wait for one call while others go on; raise if one of those fails meanwhile.

    Args:
        handle: the call to wait for.
        others: calls that it depends on, such as services that run as long as the run does.
        timeout: deadline in seconds; `cluster.timeouts.call` by default.

    Returns:
        What the call returned, by rank.
    """
    limit = handle._group.supervisor.timeout("call") if timeout is None else timeout
    begin = time.perf_counter()
    _collect([handle], others, Deadline(limit))
    _record(handle, begin)
    return handle.wait()


def _collect(
    handles: Sequence[WorkerGroupFuncResult],
    beside: Sequence[WorkerGroupFuncResult],
    deadline: Deadline,
    ended: Ended | None = None,
) -> WorkerGroupFuncResult | None:
    """Wait until all ranks of some calls have ended and keep what they returned.

    Each rank is looked at as soon as it ends: its failure is told although others hang.

    Args:
        handles: the calls to wait for.
        beside: calls that must not fail meanwhile.
        deadline: when to give up.
        ended: see `wait_all`.

    Returns:
        The call that ended last; None if all had ended before.
    """
    open_calls = [handle for handle in handles if handle._outcomes is None]
    owner = {ref: call for call in (*beside, *open_calls) for ref in call._refs}
    needed = dict.fromkeys(ref for call in open_calls for ref in call._refs)
    watched = dict.fromkeys(ref for ref in owner if ref not in needed)
    values: dict[Any, Any] = {}
    # All calls of a process go the same way.
    backend = next((call.group.backend for call in (*beside, *open_calls)), None)
    last: WorkerGroupFuncResult | None = None
    with waiting(lambda: dict.fromkeys(owner[ref] for ref in list(needed))):
        while needed:
            refs = [*needed, *watched]
            ready = backend.wait(refs, 1, deadline.left())
            if not ready and deadline.passed():
                raise owner[next(iter(needed))].late(deadline.seconds)
            if ready and len(needed) > 1:
                pause = _PAUSE_PER_RANK * len(refs)
                ready = backend.wait(refs, len(needed), pause) or ready
            for ref, value in _values(backend, ready, owner).items():
                if ref in needed:
                    values[ref] = value
                    last = owner[ref]
                    del needed[ref]
                else:
                    del watched[ref]
                if ended is not None:
                    call = owner[ref]
                    ended(call, call.ranks[call._refs.index(ref)])
    for call in open_calls:
        call._outcomes = [values[ref] for ref in call._refs]
    return last


def _values(
    backend: CallBackend, ready: Sequence[Any], owner: dict[Any, WorkerGroupFuncResult]
) -> dict[Any, Any]:
    """Return what ranks that have ended returned; raise the failure of one that failed."""
    try:
        return dict(zip(ready, backend.get(list(ready)), strict=True))
    except CallFailed:
        # One by one, each as part of its own call.
        return {ref: owner[ref]._value(ref) for ref in ready}


def _record(handle: WorkerGroupFuncResult, begin: float) -> None:
    """Note in the trace how long this process waited for a call."""
    recorder, end = trace.current(), time.perf_counter()
    if recorder is not None and end - begin > trace.SHORTEST_WAIT:
        recorder.add(f"{handle._group.name}.{handle.method}()", trace.WAIT, begin, end)
