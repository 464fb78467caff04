"""Signals raise in the user's code and in waits, never where data is half moved."""

import gc
import signal
import sys
import threading
import time
import weakref

import pytest

from rlinf.scheduler import Channel
from rlinf.scheduler.net import interrupts
from rlinf.scheduler.net.interrupts import interruptible, shielded, shielded_methods

PROMPTLY = 20


class Cancelled(Exception):
    pass


@pytest.fixture
def cancel_signal():
    before = signal.signal(
        signal.SIGUSR1, lambda signum, frame: interrupts.interrupt(Cancelled(), signum)
    )
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def wait_for_signal():
    threading.Event().wait(PROMPTLY)


def test_what_a_shielded_function_returns_reaches_its_caller(cancel_signal):
    steps = []

    @shielded
    def inner():
        signal.raise_signal(cancel_signal)
        steps.append("inner")

    @shielded
    def outer():
        inner()
        steps.append("outer")
        return "outcome"

    with pytest.raises(Cancelled):
        steps.append(outer())
        wait_for_signal()
    assert steps == ["inner", "outer", "outcome"]


def test_a_wait_takes_the_signal_that_came_before_it(cancel_signal):
    @shielded
    def waits():
        signal.raise_signal(cancel_signal)
        try:
            interruptible(wait_for_signal)
        except Cancelled:
            signal.raise_signal(cancel_signal)
            return "shielded again"

    begin = time.monotonic()
    with pytest.raises(Cancelled):
        assert waits() == "shielded again"
        wait_for_signal()
    assert time.monotonic() - begin < PROMPTLY


@pytest.mark.parametrize("wrap", [shielded, lambda function: function], ids=["shielded", "bare"])
def test_a_finalizer_swallows_no_signal(cancel_signal, wrap):
    """Shielded, the signal comes later; bare, it raises in there, and comes again."""

    class Thing:
        pass

    def finalize():
        signal.raise_signal(cancel_signal)

    thing = Thing()
    weakref.finalize(thing, wrap(finalize))
    with pytest.raises(Cancelled):
        del thing
        gc.collect()
        wait_for_signal()


def test_other_errors_of_finalizers_are_shown_as_ever(cancel_signal, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    with pytest.raises(Cancelled):
        signal.raise_signal(cancel_signal)

    class Thing:
        def __del__(self):
            raise ValueError("mine")

    thing = Thing()
    del thing
    gc.collect()
    assert [str(unraisable.exc_value) for unraisable in shown] == ["mine"]


def test_other_threads_are_not_counted(cancel_signal):
    entered, leave = threading.Event(), threading.Event()

    @shielded
    def stays():
        entered.set()
        leave.wait(PROMPTLY)

    thread = threading.Thread(target=stays)
    thread.start()
    entered.wait(PROMPTLY)
    with pytest.raises(Cancelled):
        signal.raise_signal(cancel_signal)
    leave.set()
    thread.join()


def test_public_methods_of_a_class_are_shielded(cancel_signal):
    @shielded_methods
    class Queue:
        def put(self):
            signal.raise_signal(cancel_signal)
            return "put"

        @classmethod
        def create(cls):
            signal.raise_signal(cancel_signal)
            return cls()

        def _private(self):
            signal.raise_signal(cancel_signal)

    for call in (Queue.create, Queue().put):
        outcome = None
        with pytest.raises(Cancelled):
            outcome = call()
            wait_for_signal()
        assert outcome is not None
    with pytest.raises(Cancelled):
        Queue()._private()


def _moves_data(frame):
    """Whether a frame, or what has called it, is code that must not be torn; by the stack."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if frame.f_code is interruptible.__code__:
            return False
        if module.startswith(("rlinf.scheduler.channel.", "rlinf.scheduler.collective.")):
            return True
        frame = frame.f_back
    return False


def test_no_signal_reaches_the_code_of_channels():
    """Compares with the stack, at thousands of places where a signal happens to come."""
    unshielded, inside = [], []

    def look(signum, frame):
        if _moves_data(frame):
            inside.append(1)
            if not interrupts._main.shields:
                unshielded.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        channel = Channel.create("signals", local=True)
        while len(inside) < 500:
            channel.put("item", key=1)
            work = channel.get(key=1, async_op=True)
            assert work.then(lambda item: item * 2).wait() == "itemitem"
            assert channel.qsize() == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not unshielded, sorted(set(unshielded))
