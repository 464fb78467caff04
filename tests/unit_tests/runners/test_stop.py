"""A run takes signals: it ends its step first, and the second time it stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rlinf.runners.base_runner import BaseRunner
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


class CountedRunner(BaseRunner):
    """A runner of empty steps, which is asked to stop at one moment of its first step."""

    build_workers = evaluate = state = load_state = headline = totals = farewell = None

    def __init__(self, moment: str, stop: StopSignals):
        runner = {"val_check_interval": 0, "save_interval": 0, "save_last": True, "progress": "off"}
        self.cfg = SimpleNamespace(runner=SimpleNamespace(**runner))
        self.max_steps, self.global_step, self.saved = 3, 0, []
        self.requests = SimpleNamespace(checkpoint=False, saving=None)
        self.requests.look = self._at("look")
        self.requests.begin_save = lambda step: None
        self.requests.stop = False
        self.checkpoints = SimpleNamespace(poll=self._at("poll"), save=self._save)
        self._scores, self._best_metric = {}, ()
        self._moment, self._stop = moment, stop

    def train_step(self) -> dict[str, float]:
        self._at("train_step")()
        return {}

    def _at(self, moment: str) -> Callable[..., None]:
        def happen(wait: bool = False) -> None:
            if moment == self._moment:
                self._stop.request(signal.SIGINT)

        return happen

    def _save(self, step: int, *_: object) -> None:
        self.saved.append(step)

    def _report(self, progress, metrics, seconds) -> None:
        self._at("report")()

    def _answer_requests(self) -> None:
        self._at("answer")()

    def _counts(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize("moment", ["train_step", "report", "poll", "answer"])
def test_a_stop_at_any_moment_of_a_step_saves_the_step_it_ends_after(moment):
    stop = StopSignals()
    runner = CountedRunner(moment, stop)
    with pytest.raises(RunStopped):
        runner._train(stop)
    assert runner.saved == [runner.global_step]
