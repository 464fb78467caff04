"""What a run shows: the right numbers, on a terminal and elsewhere; the terminal stays whole."""

from __future__ import annotations

import io
import sys
import threading

import pytest
from rich.console import Console

from rlinf.utils import progress as module
from rlinf.utils.live_view import LiveView
from rlinf.utils.progress import Progress
from rlinf.utils.run_state import RunState, span


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_the_pace_of_late(clock):
    state = RunState(total=100)
    assert state.left is None and state.step_seconds is None
    for step in range(1, 31):
        clock[0] += 10.0 if step <= 5 else 2.0
        state.advance(step, {})
    assert state.step_seconds == pytest.approx(2.0)
    assert state.left == pytest.approx(140.0)
    assert state.passed == pytest.approx(5 * 10 + 25 * 2)


def test_the_first_step_is_not_a_measure(clock):
    """It compiles and fills caches, also in a resumed run, which has not made those before."""
    state = RunState(total=100)
    clock[0] += 60.0
    state.advance(91, {})
    assert state.left is None and state.step_seconds is None
    clock[0] += 4.0
    state.advance(92, {})
    assert state.step_seconds == pytest.approx(4.0)
    assert state.left == pytest.approx(32.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (7.4, "7 s"),
        (125, "2:05 min"),
        (3 * 3600 + 605, "3:10 h"),
        (2 * 86400 + 4 * 3600, "2 d 4 h"),
    ],
)
def test_lengths_of_time(seconds, words):
    assert span(seconds) == words


def test_plain_lines(clock, capsys):
    shown = Progress(30, "auto")
    for step in (1, 2, 3, 30):
        clock[0] += 1.5
        shown.show(step, {"success": f"{step}%"})
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[   1.5 s] step 1/30  success 1%"
    assert lines[1] == "[   4.5 s] step 3/30  success 3%  left 40 s"
    # One line in two seconds is enough, but the last one comes.
    assert [line.partition("step ")[2].partition(" ")[0] for line in lines] == [
        "1/30",
        "3/30",
        "30/30",
    ]
    assert "left" not in lines[-1]


def test_a_silent_run_says_what_it_waits_for(monkeypatch, capsys):
    monkeypatch.setattr(module, "_SILENCE_SECONDS", 0.05)
    asked = threading.Event()

    def waiting() -> list[str]:
        asked.set()
        return ["EnvGroup.interact() 3 s"]

    shown = Progress(30, "plain", waiting)
    assert asked.wait(20)
    shown.close()
    for _ in range(200):
        said = capsys.readouterr().err
        if said:
            break
        threading.Event().wait(0.01)
    assert "in the first step  waiting for EnvGroup.interact() 3 s" in said


def test_off_is_silent(capsys):
    shown = Progress(3, "off")
    shown.show(1, {"success": "1%"})
    shown.close()
    assert capsys.readouterr() == ("", "")


def make_view(**sources) -> tuple[LiveView, RunState, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=110, height=20, color_system=None)
    state = RunState(total=30)
    sources = {"waiting": list, "queues": list} | sources
    return LiveView(state, console=console, **sources), state, file


def test_the_live_view_shows_all_of_it():
    view, state, file = make_view(
        waiting=lambda: ["EnvGroup.interact() 4 s", "ActorGroup.recv() 4 s"],
        queues=lambda: ["rollouts 12 (3.1 MiB)"],
    )
    state.advance(6, {})
    state.advance(7, {"env steps": "11,200", "success": "62%", "speed": "2,310/s"})
    view._filled = view._queues()
    view._live.refresh()
    text = file.getvalue()
    for words in (
        "7/30",
        "s/step",
        "left",
        "success 62%",
        "speed 2,310/s",
        "waiting for EnvGroup.interact() 4 s, ActorGroup.recv() 4 s",
        "queues rollouts 12 (3.1 MiB)",
    ):
        assert words in text, words
    view.close()
    view.close()
    last = file.getvalue()[len(text) :]
    assert "7/30" in last and "waiting for" not in last, "what stays is the result"


def test_a_source_that_fails_is_shown_and_stops_nothing():
    def fail() -> list[str]:
        raise ConnectionError("the keeper is gone")

    view, state, file = make_view(waiting=fail)
    view._live.refresh()
    view.close()
    assert "not known (ConnectionError: the keeper is gone)" in file.getvalue()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_terminal_is_left_in_order(error):
    out, err = sys.stdout, sys.stderr
    view, _, file = make_view()
    with pytest.raises(error):
        try:
            raise error
        finally:
            view.close()
    assert (sys.stdout, sys.stderr) == (out, err)
    shown, hidden = (file.getvalue().rfind(code) for code in ("\x1b[?25h", "\x1b[?25l"))
    assert shown > hidden, "the cursor is visible"


def test_the_cursor_is_visible_all_the_time():
    view, _, file = make_view()
    text = file.getvalue()
    view.close()
    # Nobody could give it back after SIGKILL.
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
