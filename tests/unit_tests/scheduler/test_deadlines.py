"""Tests deadlines that stand still while somebody debugs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rlinf.scheduler import deadlines
from rlinf.scheduler.deadlines import Deadline, await_within, set_paused, wait_within


class FakeTime:
    """A monotonic clock that only tests move."""

    def __init__(self):
        self.value = 100.0

    def monotonic(self) -> float:
        return self.value


@pytest.fixture
def clock(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(deadlines, "time", fake)
    monkeypatch.setattr(deadlines, "_clock", deadlines._Clock())
    return fake


def test_a_deadline_passes(clock):
    deadline = Deadline(2.0)
    clock.value += 1.5
    assert deadline.left() == 0.5 and not deadline.passed()
    clock.value += 0.5
    assert deadline.left() == 0.0 and deadline.passed()


def test_without_a_limit_nothing_passes(clock):
    deadline = Deadline(None)
    clock.value += 1e9
    assert deadline.left() is None and not deadline.passed()


def test_time_in_which_the_clock_stands_does_not_count(clock):
    deadline = Deadline(2.0)
    clock.value += 1.0
    set_paused(True)
    clock.value += 1000.0
    assert not deadline.passed() and deadline.left() == 1.0
    set_paused(False)
    assert deadline.left() == 1.0
    clock.value += 1.0
    assert deadline.passed()


def test_a_deadline_that_begins_while_the_clock_stands_has_all_its_time(clock):
    set_paused(True)
    set_paused(True)
    deadline = Deadline(2.0)
    clock.value += 1000.0
    set_paused(False)
    assert deadline.left() == 2.0


def test_who_waits_while_the_clock_stands_does_not_spin(clock):
    deadline = Deadline(0.0)
    set_paused(True)
    assert deadline.left() > 0.1


def test_a_wait_goes_on_until_the_clock_has_gone_on(clock):
    waits = []

    def wait(seconds):
        waits.append(seconds)
        clock.value += seconds
        if len(waits) == 3:
            set_paused(False)
        return False

    set_paused(True)
    assert not wait_within(0.5, wait)
    # Three waits did not count, the fourth was the half second that is allowed.
    assert waits == [0.5, 0.5, 0.5, 0.5]


def test_what_happens_ends_a_wait():
    event = threading.Event()
    event.set()
    assert wait_within(None, event.wait) and wait_within(60.0, event.wait)
    assert not wait_within(0.01, threading.Event().wait)


def test_coroutines_wait_alike(clock):
    async def wait(seconds):
        clock.value += seconds
        return False

    assert not asyncio.run(await_within(1.0, wait))
