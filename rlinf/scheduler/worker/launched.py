"""A group that runs: its actors, and calls on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.errors import WaitTimeout
from rlinf.scheduler.failure.supervisor import Supervisor
from rlinf.scheduler.worker.backend import CallBackend
from rlinf.scheduler.worker.handle import WorkerGroupFuncResult


class Scatter:
    """An argument that differs by rank: element i goes to the i-th rank of the call."""

    def __init__(self, values: Sequence[Any]):
        self.values = list(values)


class LaunchedGroup:
    """Workers that are running.

    Attributes:
        name: name of the group.
        supervisor: explains what goes wrong with it.
        backend: how calls come back.
        actors: handles of the workers, in rank order.
        infos: what the registry knows of each, in rank order.
        closes_itself: whether the workers want to be told before they end.
        stopped: whether `Cluster.stop_group` has ended it.
    """

    def __init__(
        self,
        name: str,
        supervisor: Supervisor,
        backend: CallBackend,
        actors: list[Any],
        infos: list[WorkerInfo],
        closes_itself: bool = False,
    ):
        self.name = name
        self.supervisor = supervisor
        self.backend = backend
        self.actors = actors
        self.infos = infos
        self.closes_itself = closes_itself
        self.stopped = False

    def call(
        self, method: str, ranks: list[int] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> WorkerGroupFuncResult:
        """Start a method on some ranks, all by default."""
        actors = self.actors
        ranks = list(range(len(actors))) if ranks is None else ranks
        if _scattered(args, kwargs):
            each = _scatter(method, len(ranks), args, kwargs)
            refs = [
                getattr(actors[rank], method).remote(*a, **k)
                for rank, (a, k) in zip(ranks, each, strict=True)
            ]
        else:
            refs = [getattr(actors[rank], method).remote(*args, **kwargs) for rank in ranks]
        return WorkerGroupFuncResult(self, method, ranks, refs)

    def start(self) -> WorkerGroupFuncResult:
        """Let all ranks build their worker, in parallel; gives their entries in the registry."""
        refs = [actor.rlinf_start.remote() for actor in self.actors]
        return WorkerGroupFuncResult(self, "__init__", list(range(len(refs))), refs)

    def give_up_exchange(self) -> None:
        """End the exchange that the workers take part in; does not wait for it."""
        names = [self.name_of(rank) for rank in range(len(self.actors))]
        self.supervisor.tell("give_up", self.supervisor.exchange, names)

    def begin_exchange(self, number: int) -> WorkerGroupFuncResult:
        """Let all ranks take part in a new exchange."""
        refs = [actor.rlinf_begin_exchange.remote(number) for actor in self.actors]
        return WorkerGroupFuncResult(self, "begin_exchange", list(range(len(refs))), refs)

    def timers_of(self, calls: dict[int, str]) -> list[dict[str, float]]:
        """Return the timers of calls that have ended, by rank in the order given."""
        refs = [self.actors[rank].rlinf_timers.remote(call) for rank, call in calls.items()]
        return WorkerGroupFuncResult(self, "rlinf_timers", list(calls), refs).wait()

    def name_of(self, rank: int) -> str:
        """Address of a rank as text."""
        return WorkerAddress(self.name, rank).get_name()

    def late(self, method: str, ranks: list[int], seconds: float | None) -> WaitTimeout:
        """Say who did not answer a call in time and what each was doing."""
        what = f"{self.name}.{method}() on ranks {ranks}"
        names = [self.name_of(rank) for rank in ranks]
        return self.supervisor.describe_timeout(what, names, seconds)


def _scattered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(a, Scatter) for a in args) or any(
        isinstance(v, Scatter) for v in kwargs.values()
    )


def _scatter(
    method: str, count: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    for value in [*args, *kwargs.values()]:
        if isinstance(value, Scatter) and len(value.values) != count:
            raise ValueError(
                f"{method}(): Scatter holds {len(value.values)} values for {count} ranks; give one "
                "value for each rank of the call"
            )

    def pick(value: Any, index: int) -> Any:
        return value.values[index] if isinstance(value, Scatter) else value

    return [
        (tuple(pick(a, i) for a in args), {k: pick(v, i) for k, v in kwargs.items()})
        for i in range(count)
    ]
