"""`rlinf stop` and `rlinf checkpoint` ask a run, wait, and say what came of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.runners.requests import STOP, RunRequests, ask, running
from rlinf.utils.runs import RunLock, RunSummary

RUN = """
import pathlib, signal, sys
from rlinf.runners.stop import RunStopped, StopSignals
from rlinf.utils.runs import RunLock, RunSummary

folder = pathlib.Path(sys.argv[1])
lock = RunLock(folder)
summary = RunSummary(folder)
try:
    with StopSignals():
        print("ready", flush=True)
        signal.pause()
        signal.pause()
except RunStopped:
    summary.write(status="stopped", global_step=4)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    return tmp_path


class Run(threading.Thread):
    """A run of this process, which looks for requests until it has had one."""

    def __init__(self, folder: Path, save: bool = True):
        super().__init__(daemon=True)
        self.lock, self.summary = RunLock(folder), RunSummary(folder)
        self.folder, self.requests = folder, RunRequests(folder)
        self._save = save

    def run(self) -> None:
        while not self.requests.stop and not self.requests.checkpoint:
            self.requests.look()
        if self.requests.checkpoint:
            self.requests.begin_save(7)
            path = self.folder / "checkpoints" / "global_step_7"
            self.requests.end_save(path if self._save else None)
            return
        self.end("stopped")

    def end(self, status: str) -> None:
        checkpoint = str(self.folder / "checkpoints" / "global_step_3")
        self.summary.write(status=status, global_step=3, checkpoint=checkpoint)
        self.requests.close()
        self.lock.release()


def test_a_run_stops_after_its_step(folder, capsys):
    run = Run(folder)
    run.start()
    assert main(["stop", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"asked the run of process {os.getpid()} on {socket.gethostname()} to stop" in said
    assert "is stopped after step 3" in said and "checkpoint: " in said
    assert main(["stop", str(folder)]) == 1
    assert "is not running: its status is stopped" in capsys.readouterr().err


def test_a_run_that_fails_meanwhile_is_told(folder, capsys):
    run = Run(folder)
    run.run = lambda: (run.summary.write(error="ValueError: no"), run.end("failed"))
    assert main(["stop", str(folder), "--no-wait"]) == 0
    run.start()
    run.join()
    assert main(["checkpoint", str(folder)]) == 1
    assert "its status is failed" in capsys.readouterr().err


@pytest.mark.parametrize("save, code", [(True, 0), (False, 1)])
def test_a_run_saves_and_goes_on(folder, capsys, save, code):
    run = Run(folder, save)
    run.start()
    assert main(["checkpoint", str(folder)]) == code
    said = capsys.readouterr()
    assert ("global_step_7" in said.out) is save
    assert ("step 7 could not be saved" in said.err) is not save
    run.end("stopped")


def test_a_run_that_ends_without_a_checkpoint_is_told(folder, capsys, monkeypatch):
    run = Run(folder)
    monkeypatch.setattr("rlinf.cli.stop.time.sleep", lambda seconds: run.end("finished"))
    assert main(["checkpoint", str(folder)]) == 1
    said = capsys.readouterr()
    assert "ended without it" in said.err and "is finished after step 3" in said.out


def test_a_second_time_it_stops_at_once(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    # Nobody looks for requests there.
    ask(folder, STOP, running(folder))
    assert main(["stop", str(folder)]) == 0
    assert process.wait(20) == 0


def test_a_run_elsewhere_can_be_stopped_at_once_only_there(folder, capsys, monkeypatch):
    run = Run(folder)
    holder = running(folder) | {"host": "elsewhere"}
    monkeypatch.setattr("rlinf.runners.requests.holder_of", lambda folder: holder)
    monkeypatch.setattr("rlinf.utils.runs.summary.holder_of", lambda folder: holder)
    monkeypatch.setattr(os, "kill", lambda *args: pytest.fail("no such process here"))
    assert main(["stop", "--now", str(folder)]) == 1
    assert "on elsewhere can be stopped at once only there" in capsys.readouterr().err
    run.end("stopped")


def test_ctrl_c_ends_the_wait_and_not_the_request(folder, capsys, monkeypatch):
    run = Run(folder)
    monkeypatch.setattr(
        "rlinf.cli.stop.time.sleep", lambda seconds: signal.raise_signal(signal.SIGINT)
    )
    assert main(["stop", str(folder)]) == 0
    assert "the request stands" in capsys.readouterr().err
    run.requests.look()
    assert run.requests.stop
    run.end("stopped")
