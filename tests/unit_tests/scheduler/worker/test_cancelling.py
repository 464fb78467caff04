"""A call is cancelled, or it is not; the next one never is."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from rlinf.scheduler import CallCancelled
from rlinf.scheduler.worker import cancelling
from rlinf.scheduler.worker.cancelling import CANCEL_SIGNAL, CallCanceller
from tests.unit_tests.scheduler.waits import PROMPTLY


class SlowCanceller(CallCanceller):
    """Lets something happen at the very moment that a call ends."""

    def __init__(self, at_end=lambda call: None):
        super().__init__()
        self._at_end = at_end

    def end(self, call: str) -> None:
        at_end, self._at_end = self._at_end, lambda call: None
        at_end(call)
        super().end(call)


@pytest.fixture
def signals():
    """Gives the signal to a canceller for the time of a test."""
    before = signal.getsignal(CANCEL_SIGNAL)
    yield lambda canceller: signal.signal(CANCEL_SIGNAL, canceller.on_signal)
    signal.signal(CANCEL_SIGNAL, before)


def test_a_signal_that_comes_while_the_desk_is_locked_does_no_harm(signals):
    """The main thread asks itself, so that the handler runs while it holds the lock."""
    canceller = CallCanceller()
    signals(canceller)
    with pytest.raises(CallCancelled):
        canceller.run("first", "work", lambda: (canceller.request("first"), time.sleep(PROMPTLY)))
    assert canceller.run("second", "work", lambda: "done") == "done"


def test_a_signal_that_comes_late_does_not_strike_the_next_call(signals):
    canceller = CallCanceller()
    signals(canceller)
    assert canceller.run("first", "work", lambda: "done") == "done"
    canceller.request("first")
    assert canceller.run("second", "work", lambda: signal.raise_signal(CANCEL_SIGNAL)) is None
    signal.raise_signal(CANCEL_SIGNAL)


def test_a_signal_that_strikes_at_the_end_of_a_call_leaves_nothing_behind(signals):
    canceller = SlowCanceller(lambda call: (canceller.request(call), time.sleep(PROMPTLY)))
    signals(canceller)
    with pytest.raises(CallCancelled):
        canceller.run("first", "work", lambda: "done")
    signal.raise_signal(CANCEL_SIGNAL)
    assert canceller.run("second", "work", lambda: "done") == "done"
    assert not canceller.asked("first") and not canceller.request("first"), (
        "it does not run any more"
    )


def in_thread(function):
    """Runs a function in a thread of its own and returns what came of it."""
    outcome = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PROMPTLY)
    return outcome[0]


def test_an_interruption_that_has_not_arrived_is_taken_back(monkeypatch):
    sent = []
    monkeypatch.setattr(cancelling, "_raise_in", lambda thread, error: sent.append(error))
    canceller = CallCanceller()
    first = in_thread(lambda: canceller.run("first", "work", lambda: canceller.request("first")))
    assert isinstance(first, CallCancelled)
    assert sent == [CallCancelled, None]
    canceller.request("first")
    assert in_thread(lambda: canceller.run("second", "work", lambda: "done")) == "done"
    assert sent == [CallCancelled, None], "nothing is sent to a call that has ended"


def test_calls_of_a_thread_are_told_apart():
    """Each even call is cancelled while it waits, or as it ends; no odd one is."""
    canceller = CallCanceller()

    def spin() -> None:
        for _ in range(200):
            pass

    def calls() -> list[int]:
        struck = []
        for number in range(400):
            if number % 2 == 0:
                threading.Thread(target=canceller.request, args=(str(number),)).start()
            try:
                canceller.run(str(number), "work", spin)
            except CallCancelled:
                struck.append(number)
        return struck

    struck = in_thread(calls)
    assert isinstance(struck, list) and all(number % 2 == 0 for number in struck)


def test_a_call_that_ends_because_it_was_cancelled_is_cancelled(monkeypatch):
    """The interruption is still on its way when the call looks."""
    monkeypatch.setattr(cancelling, "_raise_in", lambda thread, error: None)
    canceller = CallCanceller()
    looks = lambda: canceller.request("first") and canceller.asked("first")  # noqa: E731
    assert isinstance(in_thread(lambda: canceller.run("first", "work", looks)), CallCancelled)


def test_a_call_that_was_cancelled_before_it_began_does_not():
    canceller = CallCanceller()
    assert canceller.request("early") is False
    with pytest.raises(CallCancelled, match=r"work\(\) was cancelled before it began"):
        canceller.run("early", "work", lambda: pytest.fail("it began"))
