"""A run takes signals: it ends its step first, and the second time it stops at once."""

from __future__ import annotations

import signal
import threading

import pytest

from rlinf.runners.stop import RunStopped, StopSignals, is_stop


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_waits_for_the_step_and_the_second_does_not(signum, capsys):
    before = signal.getsignal(signum)
    with StopSignals() as stop:
        stop.check()
        signal.raise_signal(signum)
        assert stop.requested == signum
        with pytest.raises(RunStopped) as asked:
            stop.check()
        with pytest.raises(RunStopped) as at_once:
            signal.raise_signal(signum)
    assert asked.value.exit_code == at_once.value.exit_code == 128 + signum
    assert signal.getsignal(signum) is before
    said = capsys.readouterr().err
    assert "stopping after this step" in said
    assert ("again stops at once" in said) is (signum == signal.SIGINT)


def test_a_terminal_that_is_gone_does_no_harm(monkeypatch):
    class Gone:
        def write(self, text):
            raise OSError(5, "Input/output error")

        flush = write

    monkeypatch.setattr("sys.stderr", Gone())
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGHUP)
    assert stop.requested == signal.SIGHUP


def test_other_threads_take_no_signals():
    outcome = []

    def run():
        with StopSignals() as stop:
            outcome.append(stop.requested)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert outcome == [None]


def test_what_counts_as_a_stop():
    stops = [KeyboardInterrupt(), RunStopped(signal.SIGHUP), SystemExit(143), SystemExit(130)]
    assert all(map(is_stop, stops))
    assert not any(map(is_stop, [SystemExit(1), SystemExit("error: x"), ValueError()]))


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
        assert stop.requested is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
