"""Rollout workers that die, hang, wait for one that hangs, and come back."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.scheduler.worker.backend import WorkerUnavailable
from rlinf.workers.rollout import engine_watch
from rlinf.workers.rollout.engine_watch import EngineWatch, HangDetector

DEADLINE = 60
PATIENCE = 0.05


class Workers:
    """Two workers that answer with who they are, hang, or are dead.

    Attributes:
        lives: process of each; None is one that has died.
        busy: those that answer no calls.
        stopped: those whose process does not run, either.
        ended: those that were ended.
        ended_at: when.
        asked: those that were asked.
        failures: calls that failed.
    """

    def __init__(self) -> None:
        self.lives: list[str | None] = ["a", "b"]
        self.busy: set[int] = set()
        self.stopped: set[int] = set()
        self.ended: list[int] = []
        self.ended_at: list[float] = []
        self.asked: set[int] = set()
        self.failures = 0
        self.backend = self
        self.actors = [SimpleNamespace(rlinf_info=self._method(rank)) for rank in range(2)]
        self.infos = [self.info(0), self.info(1)]
        self.launched = self

    def _method(self, rank: int) -> Any:
        return SimpleNamespace(remote=lambda: rank)

    @property
    def worker_info_list(self) -> list[Any]:
        return self.infos

    def info(self, rank: int) -> Any:
        return SimpleNamespace(name=f"rollout:{rank}", rank=rank, life=self.lives[rank])

    async def result(self, rank: int) -> Any:
        self.asked.add(rank)
        while rank in self.busy and self.lives[rank] is not None:
            await asyncio.sleep(0.001)
        if self.lives[rank] is None:
            self.failures += 1
            raise WorkerUnavailable("it is gone")
        return self.info(rank)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    made = Workers()

    def end(group: Workers, rank: int) -> None:
        made.ended.append(rank)
        made.ended_at.append(time.monotonic())
        made.lives[rank] = None

    monkeypatch.setattr(engine_watch, "end_process", end)
    monkeypatch.setattr(engine_watch, "responds", lambda g, rank, t: rank not in made.stopped)
    monkeypatch.setattr(engine_watch, "_LOOK_SECONDS", 0.001)
    return made


class Watched:
    """Watches over all workers; says what they tell."""

    def __init__(self, workers: Workers, patience: float = 1000.0) -> None:
        self.told: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        hangs = HangDetector(workers, patience)
        self.watches = [
            EngineWatch(
                hangs,
                rank,
                lambda why, rank=rank: self.told.put_nowait((rank, why)),
                lambda rank=rank: self.told.put_nowait((rank, "back")),
            )
            for rank in range(2)
        ]

    async def __aenter__(self) -> Watched:
        self._tasks = [asyncio.ensure_future(watch.follow()) for watch in self.watches]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next(self) -> tuple[int, str]:
        return await asyncio.wait_for(self.told.get(), DEADLINE)


async def test_a_worker_that_dies_serves_again_when_it_is_accepted(workers: Workers) -> None:
    async with Watched(workers) as watched:
        workers.lives[1] = None
        assert await watched.next() == (1, "rollout:1 has died: it is gone")
        workers.lives[1] = "c"
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert watched.told.empty(), "it is there, and has no weights"
        watched.watches[1].accept(workers.info(1))
        assert await watched.next() == (1, "back")
        assert not workers.ended


async def test_a_death_that_nobody_saw_is_told_before_the_return(workers: Workers) -> None:
    watched = Watched(workers)
    workers.lives[0] = "c"
    watched.watches[0].accept(workers.info(0))
    assert [await watched.next(), await watched.next()] == [
        (0, "rollout:0 was started anew"),
        (0, "back"),
    ]


async def test_what_was_asked_before_a_restart_says_nothing_of_the_new_worker(
    workers: Workers,
) -> None:
    workers.busy = {0}
    async with Watched(workers) as watched:
        while 0 not in workers.asked:
            await asyncio.sleep(0)
        workers.lives[0] = "c"
        watched.watches[0].accept(workers.info(0))
        assert [await watched.next(), await watched.next()][1] == (0, "back")
        # Only now the call to the old process fails.
        workers.lives[0] = None
        while workers.failures < 1:
            await asyncio.sleep(0.001)
        workers.lives[0], workers.busy = "c", set()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert watched.told.empty()


async def test_a_worker_that_cannot_be_reached_for_a_moment_returns(workers: Workers) -> None:
    async with Watched(workers) as watched:
        workers.lives[0] = None
        await watched.next()
        workers.lives[0] = "a"
        assert await watched.next() == (0, "back")


async def test_only_the_one_that_hangs_is_ended(workers: Workers) -> None:
    """The other one waits for it in a weight update, and is let go by its end."""
    workers.busy, workers.stopped = {0, 1}, {0}
    async with Watched(workers, PATIENCE) as watched:
        rank, why = await watched.next()
        workers.busy = set()
        assert rank == 0 and "has not answered for" in why and workers.ended == [0]
        for _ in range(20):
            await asyncio.sleep(PATIENCE / 10)
        assert workers.ended == [0] and watched.told.empty()


async def test_one_that_was_started_anew_is_not_judged_before_it_is_accepted(
    workers: Workers,
) -> None:
    """It may take long to load its model; whoever starts it gives up on it."""
    async with Watched(workers, PATIENCE) as watched:
        workers.lives[0] = None
        await watched.next()
        workers.lives[0] = "c"
        while workers.infos[0].life != "c":
            await asyncio.sleep(0.001)
        workers.busy, workers.stopped = {0}, {0}
        # The other one, which is judged, is ended meanwhile.
        workers.busy.add(1)
        assert (await watched.next())[0] == 1
        assert workers.ended == [1]


async def test_an_answer_that_comes_while_a_worker_is_judged_counts(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.busy, judged = {0}, asyncio.Event()

    async def is_hung(self: HangDetector, rank: int, seconds: float) -> bool:
        workers.busy = set()
        while not self.answered.done():
            await asyncio.sleep(0.001)
        judged.set()
        return True

    result = workers.result

    async def noted(rank: int) -> Any:
        if rank == 0:
            HangDetector.answered = asyncio.current_task()
        return await result(rank)

    workers.result = noted
    monkeypatch.setattr(HangDetector, "is_hung", is_hung)
    monkeypatch.setattr(HangDetector, "answered", None, raising=False)
    async with Watched(workers, PATIENCE) as watched:
        await asyncio.wait_for(judged.wait(), DEADLINE)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not workers.ended and watched.told.empty()


async def test_of_several_that_do_not_answer_one_is_ended_after_the_other(
    workers: Workers,
) -> None:
    workers.busy = {0, 1}
    async with Watched(workers, PATIENCE) as watched:
        await watched.next()
        await watched.next()
    assert sorted(workers.ended) == [0, 1]
    assert workers.ended_at[1] - workers.ended_at[0] >= PATIENCE
