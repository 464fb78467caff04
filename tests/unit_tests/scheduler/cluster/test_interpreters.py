"""An interpreter that cannot be used is told before anything is started with it."""

from __future__ import annotations

import sys

import pytest

from rlinf.scheduler.cluster import interpreters
from rlinf.scheduler.cluster.interpreters import _own_version, interpreter_problem


def script(folder, text: str) -> str:
    path = folder / "an interpreter"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_this_interpreter_can_be_used():
    assert interpreter_problem(sys.executable, _own_version()) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo ModuleNotFoundError: no ray >&2; exit 1", "no ray"),
        ("exit 3", "exit 3"),
        ("echo hello", "is no Python: it says 'hello'"),
        ("echo 3 9 2.0.0", "has Python 3.9 and Ray 2.0.0, while this run has Python 3."),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, said):
    assert said in interpreter_problem(script(tmp_path, text), _own_version())


def test_one_that_is_not_there(tmp_path):
    assert "not there" in interpreter_problem(str(tmp_path / "python"), _own_version())


def test_one_that_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreters, "_SECONDS", 0.1)
    path = script(tmp_path, "exec sleep 600")
    assert "within 0.1 s" in interpreter_problem(path, _own_version())


def test_one_that_the_kernel_cannot_start(tmp_path):
    path = tmp_path / "python"
    path.write_text("#!/no/such/shell\n")
    path.chmod(0o755)
    assert "cannot be run (No such file" in interpreter_problem(str(path), _own_version())
