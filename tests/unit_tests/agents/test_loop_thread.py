"""Coroutines that share a thread: turns, deadlines, and what becomes of a blocked one."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading

import pytest

from rlinf.agents import loop_thread
from rlinf.agents.loop_thread import LoopThread, Patience

SOON = 60


@pytest.fixture
def let_go():
    """Ends what blocks a thread, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


async def test_what_has_ended_is_told_before_the_turns_of_others(let_go):
    thread, begun = LoopThread("shared"), threading.Event()

    async def wait_for_both():
        begun.wait(SOON)

    async def first():
        return 1

    async def second():
        return let_go.wait(SOON)

    # Both are ready when the thread comes round.
    answers = [thread.begin(work, Patience(SOON)) for work in (wait_for_both, first, second)]
    begun.set()
    assert await answers[1] == 1
    assert not answers[2].done()
    let_go.set()
    assert await answers[2]


class Clock:
    """Stands until somebody takes time."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def take(self, seconds):
        self.now += seconds


async def turns_end(thread):
    """Wait for the end of the turn that has told an answer; what is called is no turn itself."""
    came = threading.Event()
    thread._loop.call_soon_threadsafe(came.set)
    assert await asyncio.to_thread(came.wait, SOON)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loop_thread, "time", clock)
    return clock


async def test_the_turns_of_others_are_not_counted(clock, let_go):
    """Also those of tasks that others have begun, and between two turns of its own."""
    thread, begun = LoopThread("shared"), threading.Event()
    mine, other = Patience(SOON), Patience(SOON)

    async def waits():
        for _ in range(2):
            clock.take(0.25)
            await asyncio.sleep(0)
        return "here"

    async def computes():
        begun.set()
        let_go.wait(SOON)

        async def part():
            clock.take(0.5)

        await asyncio.gather(*(part() for _ in range(4)))

    computing = thread.begin(computes, other)
    await asyncio.to_thread(begun.wait, SOON)
    waiting, begin = thread.begin(waits, mine), mine._counted()
    let_go.set()
    assert await waiting == "here"
    await computing
    await turns_end(thread)
    assert (mine.used, other.used) == (0.5, 2.0)
    assert mine._counted() - begin == 0.5
    clock.take(1.0)
    assert mine._counted() - begin == 1.5, "nobody had a turn"


async def test_what_never_answers_is_late_although_others_always_compute(clock):
    thread, hangs, other = LoopThread("shared"), Patience(SOON), Patience(SOON)
    hangs.count(thread._turns)

    async def computes():
        clock.take(0.9 * SOON)

    while not hangs.passed.done() and clock.now < 100 * SOON:
        before = clock.now
        await thread.begin(computes, other)
        await turns_end(thread)
        assert hangs._counted() == 0.0
        hangs._look()
    assert before < loop_thread.MOST_WAITS * SOON <= clock.now


async def test_what_goes_on_after_it_was_cancelled_blocks_the_thread(clock):
    """In turns each of which is short; others are told, and the thread is found to be blocked."""
    thread, over, other = LoopThread("shared"), Patience(10), Patience(SOON)
    waits, turns = threading.Event(), []

    async def swallows():
        while len(turns) < 4:
            try:
                await woken.wait()
            except asyncio.CancelledError:
                woken.set()
            clock.take(3.0)
            turns.append(await thread_is_blocked())
        done.set()

    async def thread_is_blocked():
        # After the turn before this one.
        await asyncio.sleep(0)
        return thread._turns.overrun

    async def begin():
        waits.set()
        await swallows()

    async def never():
        await asyncio.Event().wait()

    woken, done = asyncio.Event(), threading.Event()
    answer = thread.begin(begin, over)
    await asyncio.to_thread(waits.wait, SOON)
    waiting = thread.begin(never, other)
    answer.cancel()
    assert await asyncio.to_thread(done.wait, SOON)
    assert turns == [False, False, False, True]
    other._look()
    assert other.passed.done() and not waiting.done()
    assert await thread.is_blocked(other)
    thread.leave()


async def test_turns_may_be_inside_of_a_turn(clock):
    """As where a coroutine runs an event loop, which `nest_asyncio` lets it."""
    thread, outer, inner = LoopThread("shared"), Patience(SOON), Patience(SOON)
    inner.count(thread._turns)

    async def computes():
        clock.take(2.0)

    def as_the_inner_one(coroutine):
        loop_thread._owner.set(inner)
        with pytest.raises(StopIteration):
            coroutine.send(None)

    async def nests():
        clock.take(1.0)
        coroutine = loop_thread._in_turns(computes(), thread._turns)
        contextvars.copy_context().run(as_the_inner_one, coroutine)
        clock.take(4.0)
        return "done"

    assert await asyncio.wait_for(thread.begin(nests, outer), SOON) == "done"
    await turns_end(thread)
    assert (outer.used, inner.used) == (5.0, 2.0)
    assert inner._counted() == 2.0, "the rest was the turn of the outer one"


async def test_a_failure_around_the_work_is_told(monkeypatch):
    thread = LoopThread("shared")

    async def fine():
        return 1

    async def fails(work, turns):
        work.close()
        raise ZeroDivisionError("a bug around the work")

    monkeypatch.setattr(loop_thread, "_in_turns", fails)
    with pytest.raises(ZeroDivisionError, match="a bug around the work"):
        await asyncio.wait_for(thread.begin(fine, Patience(SOON)), SOON)


async def test_seconds_without_a_turn_are_counted():
    thread, patience = LoopThread("shared"), Patience(0.1)

    async def never():
        await asyncio.Event().wait()

    answer = thread.begin(never, patience)
    await asyncio.wait_for(patience.passed, SOON)
    assert not await thread.is_blocked(patience) and not answer.done()
    answer.cancel()


async def test_a_thread_that_is_blocked_by_nobody_who_is_waited_for_is_noticed(let_go):
    """By an episode that is over: its environment blocks while it is cancelled."""
    thread, blocks = LoopThread("shared"), threading.Event()

    async def cleans_up_for_ever():
        try:
            await asyncio.Event().wait()
        finally:
            blocks.set()
            let_go.wait(SOON)

    async def fine():
        return 1

    over = thread.begin(cleans_up_for_ever, Patience(SOON))
    assert await thread.begin(fine, Patience(SOON)) == 1
    over.cancel()
    await asyncio.to_thread(blocks.wait, SOON)
    patiences = [Patience(0.2), Patience(SOON)]
    first, second = (thread.begin(fine, each) for each in patiences)
    await asyncio.wait_for(patiences[0].passed, SOON)
    assert await thread.is_blocked(patiences[0])
    assert not patiences[1].passed.done()
    thread.leave()
    for answer in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await answer


async def test_what_would_end_the_thread_is_an_error_of_its_own():
    thread = LoopThread("shared")

    async def leaves():
        raise SystemExit(3)

    async def fine():
        gc.collect()
        return 1

    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await thread.begin(leaves, Patience(SOON))
    assert await thread.begin(fine, Patience(SOON)) == 1
