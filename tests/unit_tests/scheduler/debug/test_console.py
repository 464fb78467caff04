"""Tests who has the driver's terminal when several workers are in the debugger."""

from __future__ import annotations

import builtins
import queue
import sys
import threading

import pytest

from rlinf.scheduler.debug import console as module
from rlinf.scheduler.debug.console import DebugConsole


class Terminal:
    """A terminal whose user is the test."""

    def __init__(self, monkeypatch):
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.prompts: queue.Queue[str] = queue.Queue()
        monkeypatch.setattr(builtins, "input", self._input)

    def _input(self, prompt):
        self.prompts.put(prompt)
        line = self.lines.get(timeout=30)
        if line is None:
            raise EOFError
        return line


@pytest.fixture
def terminal(monkeypatch):
    return Terminal(monkeypatch)


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def console(pauses):
    return DebugConsole(pauses.append)


def begin(console, worker, **wish) -> tuple[threading.Thread, list[str]]:
    """Serves a worker in a thread."""
    answers: list[str] = []
    thread = threading.Thread(
        target=lambda: answers.append(console.serve(worker, f"at {worker}\n(Pdb) ", **wish))
    )
    thread.start()
    return thread, answers


def test_a_line_is_read_at_the_prompt_while_deadlines_stand(console, terminal, pauses, capsys):
    terminal.lines.put("p x")
    assert console.serve("w:0", "> file.py\n(Pdb) ", reads=True) == "p x\n"
    assert terminal.prompts.get() == "(Pdb) "
    assert "w:0 is in the debugger" in capsys.readouterr().out
    # What a command takes does not count either.
    assert pauses == [True]
    console.serve("w:0", "", ends=True)
    assert pauses == [True, False]


def test_the_end_of_the_input_is_told(console, terminal):
    terminal.lines.put(None)
    assert console.serve("w:0", "(Pdb) ", reads=True) == ""


def test_without_a_standard_input_it_says_so(console, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(RuntimeError, match="w:1 .* no standard input"):
        console.serve("w:1", "(Pdb) ", reads=True)


def test_others_wait_until_one_has_left(console, terminal, monkeypatch):
    monkeypatch.setattr(module, "_STEP_SECONDS", 1e6)
    first, said = begin(console, "w:0", reads=True)
    terminal.prompts.get(timeout=30)
    second, heard = begin(console, "w:1", reads=True)
    terminal.lines.put("n")
    first.join(30)
    assert said == ["n\n"]
    console.serve("w:0", "", ends=True)
    # The first one steps on and comes back: the second still waits.
    terminal.lines.put("c")
    assert console.serve("w:0", "(Pdb) ", reads=True) == "c\n"
    assert not heard
    console.serve("w:0", "", ends=True, leaves=True)
    terminal.lines.put("q")
    second.join(30)
    assert heard == ["q\n"]


def test_one_that_never_comes_back_does_not_keep_the_terminal(console, terminal, monkeypatch):
    monkeypatch.setattr(module, "_STEP_SECONDS", 0.05)
    terminal.lines.put("n")
    console.serve("w:0", "(Pdb) ", reads=True)
    console.serve("w:0", "", ends=True)
    terminal.lines.put("p 1")
    assert console.serve("w:1", "(Pdb) ", reads=True) == "p 1\n"


def test_one_that_dies_in_the_debugger_does_not_keep_it_either(console, terminal, pauses):
    terminal.lines.put("import os; os._exit(1)")
    console.serve("w:0", "(Pdb) ", reads=True)
    console.end_turn("w:2")
    assert pauses == [True]
    console.end_turn("w:0")
    terminal.lines.put("c")
    assert console.serve("w:1", "(Pdb) ", reads=True) == "c\n"
    assert pauses == [True, False, True]
