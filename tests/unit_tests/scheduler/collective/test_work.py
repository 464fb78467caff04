"""Work that is given up: what it has taken is brought back, exactly once."""

from __future__ import annotations

import asyncio

import pytest

from rlinf.scheduler import WaitTimeout
from rlinf.scheduler.collective.work import Work, finished, gather
from rlinf.scheduler.errors import CallCancelled
from tests.unit_tests.scheduler.small_run import in_thread
from tests.unit_tests.scheduler.waits import PROMPTLY


class Source:
    """Gives values to works, and takes them back."""

    def __init__(self):
        self.back = []
        self.asked = 0

    def work(self, **kwargs):
        return Work("a value", cancel=self._cancel, undo=self.back.append, **kwargs)

    def _cancel(self):
        self.asked += 1


@pytest.fixture
def source():
    return Source()


def test_what_comes_after_the_deadline_goes_back(source):
    work = source.work(timeout=0.01)
    with pytest.raises(WaitTimeout):
        work.wait()
    assert source.asked and not source.back
    assert not work.finish("late")
    assert source.back == ["late"]
    with pytest.raises(CallCancelled):
        work.wait()


def test_what_comes_in_the_grace_period_counts(source):
    work = source.work(timeout=0.01, grace=PROMPTLY)
    work._cancel = lambda: work.finish("just in time")
    assert work.wait() == "just in time"
    assert not source.back


def test_what_comes_just_before_the_waiter_is_interrupted_goes_back(source):
    work = source.work()

    def comes_and_interrupts(limit):
        work.finish("value")
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Work, "_hold", lambda self, limit: comes_and_interrupts(limit))
        with pytest.raises(KeyboardInterrupt):
            work.wait()
    assert source.back == ["value"]
    with pytest.raises(CallCancelled):
        work.wait()


def test_what_was_taken_stays_taken(source):
    work = source.work()
    work.finish("value")
    assert work.wait() == "value"
    work.cancel()
    work.abandon()
    assert not source.back and work.wait() == "value"


def test_what_follows_brings_back_what_it_would_have_used(source):
    late, early = source.work(), source.work()
    following = [work.then(str.upper) for work in (late, early)]
    early.finish("early")
    for work in following:
        work.abandon()
    late.finish("late")
    assert source.back == ["early", "late"]
    taken = source.work()
    upper = taken.then(str.upper)
    taken.finish("taken")
    assert upper.wait() == "TAKEN"
    upper.abandon()
    assert source.back == ["early", "late"]


def test_if_one_of_several_fails_the_others_take_nothing(source):
    works = [source.work() for _ in range(3)]
    together = gather(works)
    works[0].finish("here")
    works[1].finish(error=ValueError("broken"))
    works[2].finish("late")
    with pytest.raises(ValueError, match="broken"):
        together.wait()
    assert source.back == ["here", "late"]
    assert gather([finished(1), finished(2)]).wait() == [1, 2]


def test_a_deadline_of_several_takes_nothing(source):
    works = [source.work(timeout=0.01) for _ in range(2)]
    works[0].finish("here")
    with pytest.raises(WaitTimeout):
        gather(works[::-1]).wait()
    works[1].finish("late")
    assert source.back == ["here", "late"]


def test_work_that_takes_nothing_can_be_waited_for_again(source):
    work = Work("somebody")
    with pytest.raises(WaitTimeout):
        work.wait(timeout=0.01)
    work.finish("came")
    assert work.wait() == "came"


def test_all_who_wait_are_woken_when_one_is_interrupted(source):
    work = Work("somebody")
    waiting = [in_thread(work.wait) for _ in range(3)]
    work._gate.acquire(timeout=0.05)
    work.finish("came")
    work.abandon()
    assert [each.wait() for each in waiting] == ["came"] * 3


async def test_a_cancelled_coroutine_brings_back_what_has_just_come(source):
    work = source.work()
    task = asyncio.ensure_future(work.async_wait())
    await asyncio.sleep(0)
    work.finish("value")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.back == ["value"]
