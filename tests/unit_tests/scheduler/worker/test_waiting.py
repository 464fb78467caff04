"""Waiting for many ranks costs each of them the same, however many there are and end when they may.

Time is that of a script here: what is counted is how often ranks are looked at.
"""

from __future__ import annotations

import pytest

from rlinf.scheduler import WorkerDied
from rlinf.scheduler.worker.backend import CallFailed, NotYet, WorkerLost
from rlinf.scheduler.worker.handle import WorkerGroupFuncResult, wait_all, wait_beside


class Call:
    """A call of a rank that ends at a given time, well or by the death of the rank."""

    def __init__(self, rank: int, end: float, dies: bool = False):
        self.rank = rank
        self.end = end
        self.dies = dies


class Backend:
    """Calls that end as time goes by, which it does only while somebody waits for them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self.gets = 0

    def wait(self, refs, count, timeout):
        self.looks += len(refs)
        enough = sorted(ref.end for ref in refs)[count - 1]
        limit = float("inf") if timeout is None else self.now + timeout
        self.now = max(self.now, min(enough, limit))
        return [ref for ref in refs if ref.end <= self.now][:count]

    def get(self, refs, timeout=None):
        self.gets += len(refs)
        if len(self.wait(refs, len(refs), timeout)) < len(refs):
            raise NotYet
        if any(ref.dies for ref in refs):
            raise WorkerLost("it died")
        return [ref.rank for ref in refs]


class Supervisor:
    """Knows the deaths of a run in their order."""

    def __init__(self, order: list[str], heard: bool = True):
        self.explained: list[str] = []
        self._order = order
        self._heard = heard

    def timeout(self, name: str) -> None:
        return None

    def death_order(self) -> dict[str, int]:
        return {name: n for n, name in enumerate(self._order)} if self._heard else {}

    def explain_death(self, name: str, message: str) -> WorkerDied:
        self._heard = True
        self.explained.append(name)
        return WorkerDied(name, cause=message)

    def note_told(self, failure: BaseException) -> None:
        pass


class Group:
    """A group without workers."""

    name = "g"

    def __init__(self, supervisor: Supervisor | None = None):
        self.backend = Backend()
        self.supervisor = supervisor or Supervisor([])

    def name_of(self, rank: int) -> str:
        return f"g:{rank}"

    def call(self, ends: list[float], dead: tuple[int, ...] = ()) -> WorkerGroupFuncResult:
        calls = [Call(rank, end, rank in dead) for rank, end in enumerate(ends)]
        return WorkerGroupFuncResult(self, "work", list(range(len(calls))), calls)


WAYS = {
    "wait": lambda call: call.wait(),
    "wait_all": lambda call: wait_all(call)[0],
    "wait_beside": lambda call: wait_beside(call, [call.group.call([1e9])]),
}


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_end_one_by_one_are_not_looked_at_each_time(way):
    looks, gets = {}, {}
    for size in (64, 1024):
        group = Group()
        # A millisecond between two: longer than a pause for few ranks, shorter for many.
        assert WAYS[way](group.call([2.0 + rank / 1000 for rank in range(size)])) == [*range(size)]
        looks[size] = group.backend.looks / size
        gets[size] = group.backend.gets / size
    assert looks[1024] <= 2 * looks[64]
    assert gets[1024] <= gets[64] <= 3


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_that_end_at_once_are_taken_at_once(way):
    group = Group()
    assert WAYS[way](group.call([2.0] * 512)) == [*range(512)]
    assert group.backend.looks / 512 <= 6 and group.backend.now <= 2.0 + 0.1


def test_a_rank_that_dies_is_told_of_soon_although_the_others_go_on():
    group = Group(Supervisor(["g:7"]))
    with pytest.raises(WorkerDied, match="g:7"):
        wait_all(group.call([5.0 if rank == 7 else 1e9 for rank in range(4096)], dead=(7,)))
    assert group.backend.now < 6.0


@pytest.mark.parametrize("heard", [True, False], ids=["known", "not yet known"])
def test_of_very_many_deaths_the_first_one_is_explained(heard):
    order = [f"g:{rank}" for rank in reversed(range(512))]
    supervisor = Supervisor(order, heard)
    call = Group(supervisor).call([2.0] * 512, dead=tuple(range(512)))
    with pytest.raises(WorkerDied, match="g:511"):
        call.wait()
    assert len(supervisor.explained) <= 2


def test_the_ranks_that_are_late_are_named():
    group = Group()
    group.late = lambda method, ranks, seconds: CallFailed(ranks)
    assert group.call([0.0, 9.0, 0.0, 9.0]).late(1.0).args == ([1, 3],)
