"""Rollout workers that die, hang, wait for one that hangs, and come back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.scheduler.worker.backend import WorkerUnavailable
from rlinf.workers.rollout import engine_watch
from rlinf.workers.rollout.engine_watch import EngineWatch, Hangs

DEADLINE = 60
PATIENCE = 0.05


class Workers:
    """Two workers that answer with who they are, hang, or are dead.

    Attributes:
        lives: process of each; None is one that has died.
        busy: those that answer no calls.
        stopped: those whose process does not run, either.
        ended: those that were ended.
        asked: those that were asked.
        failures: calls that failed.
    """

    def __init__(self) -> None:
        self.lives: list[str | None] = ["a", "b"]
        self.busy: set[int] = set()
        self.stopped: set[int] = set()
        self.ended: list[int] = []
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
        made.lives[rank] = None

    monkeypatch.setattr(engine_watch, "end_process", end)
    monkeypatch.setattr(engine_watch, "responds", lambda g, rank, t: rank not in made.stopped)
    monkeypatch.setattr(engine_watch, "_LOOK_SECONDS", 0.001)
    return made


class Watched:
    """Watches over all workers; says what they tell."""

    def __init__(self, workers: Workers) -> None:
        self.told: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        hangs = Hangs(workers, PATIENCE)
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
    async with Watched(workers) as watched:
        rank, why = await watched.next()
        workers.busy = set()
        assert rank == 0 and "has not answered for" in why and workers.ended == [0]
        for _ in range(20):
            await asyncio.sleep(PATIENCE / 10)
        assert workers.ended == [0] and watched.told.empty()


async def test_of_several_that_do_not_answer_one_is_ended_after_the_other(
    workers: Workers,
) -> None:
    workers.busy = {0, 1}
    async with Watched(workers) as watched:
        begin = asyncio.get_running_loop().time()
        await watched.next()
        first = asyncio.get_running_loop().time()
        await watched.next()
        second = asyncio.get_running_loop().time()
    assert sorted(workers.ended) == [0, 1]
    assert first - begin >= 2 * PATIENCE * 0.9 and second - first >= PATIENCE * 0.9
