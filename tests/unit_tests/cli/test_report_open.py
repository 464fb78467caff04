"""`rlinf report --open` opens the page where there is a browser, and says where it is elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import webbrowser

import pytest

from rlinf.cli import main
from tests.unit_tests.cli.test_report import make_run

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def report(folder, *more: str, **variables: str) -> subprocess.CompletedProcess:
    """Run it in a process of its own: browsers are looked for once in a process."""
    env = {name: value for name, value in os.environ.items() if name not in SCREENS} | variables
    command = [sys.executable, "-m", "rlinf.cli", "report", str(folder), *more]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def browser(tmp_path):
    """A browser that notes what it opens."""
    program, opened = tmp_path / "browser", tmp_path / "opened"
    program.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    program.chmod(0o755)
    return program, opened


def test_the_page_is_opened(tmp_path, browser):
    program, opened = browser
    folder = make_run(tmp_path / "my run")
    done = report(folder, "--open", BROWSER=f"{program} %s")
    assert done.returncode == 0, done.stderr
    assert "opened in the browser" in done.stdout
    assert opened.read_text().strip() == (folder / "report.html").as_uri()
    opened.unlink()
    assert report(folder, BROWSER=f"{program} %s").returncode == 0
    assert not opened.exists(), "only if asked to"


@pytest.mark.parametrize("variables", [{}, {"BROWSER": "no_such_browser"}])
def test_without_a_browser_it_says_where_the_page_is(tmp_path, variables):
    folder = make_run(tmp_path / "run")
    done = report(folder, "--open", **variables)
    assert done.returncode == 0 and done.stderr == ""
    assert "no browser can be opened here" in done.stdout
    assert str(folder / "report.html") in done.stdout and (folder / "report.html").is_file()


def test_a_browser_that_cannot_be_located_is_none(tmp_path, monkeypatch, capsys):
    def fails(uri):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", fails)
    folder = make_run(tmp_path / "run")
    assert main(["report", str(folder), "--open", "--out", str(tmp_path / "page.html")]) == 0
    assert f"{tmp_path / 'page.html'}" in capsys.readouterr().out
