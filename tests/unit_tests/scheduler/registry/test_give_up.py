"""Locks whose waiters give up, between members of a run inside this process."""

from __future__ import annotations

import signal
import threading

import pytest

from rlinf.scheduler import WaitTimeout
from rlinf.scheduler.errors import CallCancelled
from rlinf.scheduler.net import interrupts
from tests.unit_tests.scheduler.small_run import in_thread, stalled
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


def test_a_lock_that_is_granted_to_nobody_is_given_back(small_run):
    holder, waiter = small_run.join("h:0"), small_run.join("w:0")
    lock, wanted = small_run.lock(holder), small_run.lock(waiter)
    lock.acquire()
    with stalled(waiter):
        # It is granted in time, and the answer comes when nobody waits for it any more.
        lock.release()
        with pytest.raises(WaitTimeout):
            undo = ("release", {"keys": ["device"]})
            waiter.registry.ask("acquire", keys=["device"], timeout=0.2, undo=undo)
    lock.acquire(timeout=PROMPTLY)
    lock.release()
    wanted.acquire(timeout=PROMPTLY)
    wanted.release()


def test_a_lock_whose_waiter_times_out_goes_to_the_next(small_run):
    holder, waiter, third = (small_run.join(name) for name in ("h:0", "w:0", "t:0"))
    lock = small_run.lock(holder)
    lock.acquire()
    with pytest.raises(WaitTimeout, match="device is held by h:0"):
        small_run.lock(waiter).acquire(timeout=0.2)
    lock.release()
    small_run.lock(third).acquire(timeout=PROMPTLY)


@pytest.mark.parametrize("granted", [False, True])
def test_a_lock_whose_waiter_is_interrupted_is_free(small_run, granted):
    holder, waiter = small_run.join("h:0"), small_run.join("w:0")
    lock = small_run.lock(holder)
    lock.acquire()

    def cancel(signum, frame):
        interrupts.interrupt(CallCancelled("cancelled"), signum)

    def interrupt():
        wait_until(lambda: small_run.server._waiters)
        if granted:
            with stalled(waiter):
                lock.release()
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                wait_until(lambda: not waiter.registry._calls)
        else:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, cancel)
    try:
        interrupting = in_thread(interrupt)
        with pytest.raises(CallCancelled):
            small_run.lock(waiter).acquire()
        interrupting.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    if not granted:
        lock.release()
    lock.acquire(timeout=PROMPTLY)


def test_an_inquiry_goes_with_who_asked(small_run):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    life = there.endpoint._life
    with stalled(there):
        asking = in_thread(lambda: here.registry.ask("responds", worker="there:0", life=life))
        wait_until(lambda: small_run.server._inquiries)
        small_run._cut(here)
        wait_until(lambda: not small_run.server._inquiries)
        small_run._members.remove(here)
    del asking
