"""What a run says around its steps, and how long each of these took."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from rlinf.utils import phases as module
from rlinf.utils.phases import Phases


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_long_phases_are_told_and_all_are_counted(clock, capsys):
    phases = Phases()
    phases.begin("plain")
    for seconds in (6.11, 0.2):
        with phases.phase("start_ray"):
            clock[0] += seconds
    with phases.phase("build"):
        clock[0] += 0.5
    assert capsys.readouterr().err == "starting Ray ... 6.1 s\n"
    assert phases.seconds == {"start_ray": pytest.approx(6.31), "build": 0.5}


def test_what_the_program_took_before_the_run_is_its_imports(monkeypatch, capsys):
    monkeypatch.setattr(module.time, "time", lambda: 1000.0)
    phases = Phases()
    phases.begin("plain", since=995.8)
    assert phases.began == 995.8 and phases.seconds == {"imports": pytest.approx(4.2)}
    assert capsys.readouterr().err == "importing ... 4.2 s\n"
    phases.begin("plain")
    assert phases.began == 1000.0 and phases.seconds == {}, "another run of the same process"


def test_off_is_silent_and_counts(clock, capsys):
    phases = Phases()
    phases.begin("off")
    with phases.phase("video"):
        clock[0] += 30
    assert capsys.readouterr() == ("", "") and phases.seconds == {"video": 30.0}


def test_a_phase_inside_another_is_a_part_of_it(clock, capsys):
    phases = Phases()
    phases.begin("plain")

    @phases.phase("launch")
    def launch() -> None:
        clock[0] += 2

    with phases.phase("build"):
        other = threading.Thread(target=launch)
        other.start()
        other.join()
        clock[0] += 1
    assert phases.seconds == {"build": 3.0}
    launch()
    assert phases.seconds == {"build": 3.0, "launch": 2.0}
    assert capsys.readouterr().err.splitlines() == [
        "building simulators and models ... 3.0 s",
        "launching workers ... 2.0 s",
    ]


def test_a_phase_that_fails_is_counted_too(clock):
    phases = Phases()
    with pytest.raises(ValueError), phases.phase("load"):
        clock[0] += 4
        raise ValueError
    with phases.phase("build"):
        clock[0] += 1
    assert phases.seconds == {"load": 4.0, "build": 1.0}


class Watched(io.StringIO):
    """A stream that tells when something was written."""

    def __init__(self, is_terminal: bool):
        super().__init__()
        self.wrote, self._is_terminal = threading.Event(), is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        count = super().write(text)
        self.wrote.set()
        return count


@pytest.mark.parametrize("is_terminal", [True, False])
def test_it_shows_what_goes_on(monkeypatch, is_terminal):
    file = Watched(is_terminal)
    monkeypatch.setattr(sys, "stderr", file)
    for name in ("_REDRAW", "_LONG"):
        monkeypatch.setattr(module, name, 0.01)
    phases = Phases()
    phases.begin("auto")
    with phases.phase("start_ray"):
        assert file.wrote.wait(20)
    shown = file.getvalue()
    if is_terminal:
        assert shown.startswith("\x1b[Kstarting Ray ... 0 s\r") and shown.endswith("\x1b[K")
    else:
        assert shown == "starting Ray ...\n"


def test_a_terminal_that_is_gone_does_no_harm(clock, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    phases = Phases()
    phases.begin("auto")
    with phases.phase("stop"):
        clock[0] += 2
    assert phases.seconds == {"stop": 2.0}
