"""A group that runs: its actors, and calls on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.errors import WaitTimeout, WorkerDied
from rlinf.scheduler.registry.state import Raised
from rlinf.scheduler.worker.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.worker.handle import WorkerGroupFuncResult

if TYPE_CHECKING:
    from rlinf.scheduler.cluster import Cluster


class Scatter:
    """An argument that differs by rank: element i goes to the i-th rank of the call."""

    def __init__(self, values: Sequence[Any]):
        self.values = list(values)


class LaunchedGroup:
    """Workers that are running.

    Attributes:
        name: name of the group.
        cluster: where it runs.
        actors: Ray handles, in rank order.
        infos: what the registry knows of each, in rank order.
        closes_itself: whether the workers want to be told before they end.
        stopped: whether `Cluster.stop_group` has ended it.
    """

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        actors: list[Any],
        infos: list[WorkerInfo],
        closes_itself: bool = False,
    ):
        self.name = name
        self.cluster = cluster
        self.actors = actors
        self.infos = infos
        self.closes_itself = closes_itself
        self.stopped = False

    def call(
        self, method: str, ranks: list[int] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> WorkerGroupFuncResult:
        """Starts a method on some ranks, all by default."""
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

    def start(self, timeout: float | None) -> list[WorkerInfo]:
        """Lets all ranks build their worker, in parallel; returns their entries in the registry."""
        refs = [actor.rlinf_start.remote() for actor in self.actors]
        ranks = list(range(len(refs)))
        return WorkerGroupFuncResult(self, "__init__", ranks, refs).wait(timeout)

    @property
    def default_timeout(self) -> float | None:
        """Deadline of a call that names none."""
        return self.cluster.timeout("call")

    def cancel_calls(self, calls: dict[int, str]) -> None:
        """Asks ranks to stop a call each."""
        for rank, call in calls.items():
            self.cluster.cancel(call, [self.name_of(rank)])

    def give_up_exchange(self) -> None:
        """Ends the exchange that the workers take part in; does not wait for it."""
        names = [self.name_of(rank) for rank in range(len(self.actors))]
        self.cluster.tell("give_up", self.cluster.exchange, names)

    def begin_exchange(self, number: int) -> WorkerGroupFuncResult:
        """Lets all ranks take part in a new exchange."""
        refs = [actor.rlinf_begin_exchange.remote(number) for actor in self.actors]
        return WorkerGroupFuncResult(self, "begin_exchange", list(range(len(refs))), refs)

    def timers_of(self, calls: dict[int, str]) -> list[dict[str, float]]:
        """Timers of calls that have ended, by rank in the order given."""
        refs = [self.actors[rank].rlinf_timers.remote(call) for rank, call in calls.items()]
        return WorkerGroupFuncResult(self, "rlinf_timers", list(calls), refs).wait()

    def name_of(self, rank: int) -> str:
        """Address of a rank as text."""
        return WorkerAddress(self.name, rank).get_name()

    def autopsy(self, rank: int, message: str) -> WorkerDied:
        """Finds out how a rank died."""
        return self.cluster.autopsy(self.name_of(rank), message)

    def with_facts(self, died: WorkerDied) -> WorkerDied:
        """A death as a peer saw it, with how it came about if the peer does not know."""
        return self.cluster.with_facts(died)

    def deaths_behind(self, report: Raised) -> list[WorkerDied]:
        """Deaths that may be the reason of an exception, in the order of time."""
        return self.cluster.deaths_behind(report)

    def told(self, failure: BaseException) -> None:
        """Notes that the caller is about to get this failure."""
        self.cluster.told(failure)

    def death_order(self) -> dict[str, int]:
        """Position of each death of the run in time."""
        return self.cluster.death_order()

    def describe_timeout(self, method: str, ranks: list[int], timeout: float | None) -> WaitTimeout:
        """Says who did not answer a call and what each was doing."""
        what = f"{self.name}.{method}() on ranks {ranks}"
        return self.cluster.describe_timeout(what, [self.name_of(r) for r in ranks], timeout)


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
                "value "
                "for each rank of the call"
            )

    def pick(value: Any, index: int) -> Any:
        return value.values[index] if isinstance(value, Scatter) else value

    return [
        (tuple(pick(a, i) for a in args), {k: pick(v, i) for k, v in kwargs.items()})
        for i in range(count)
    ]
