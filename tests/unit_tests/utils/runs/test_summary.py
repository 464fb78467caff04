"""What a run is remembered by, whatever becomes of it."""

from __future__ import annotations

import json

import pytest

from rlinf.utils import disk
from rlinf.utils.runs import RunLock, RunSummary, read_summary, status_of
from rlinf.utils.runs.summary import close_summary


def test_a_run_without_lock_that_says_it_is_running_was_killed(tmp_path):
    lock = RunLock(tmp_path)
    summary = RunSummary(tmp_path, seed=7)
    assert status_of(tmp_path) == "running"
    assert read_summary(tmp_path)["seed"] == 7
    lock.release()
    assert status_of(tmp_path) == "killed"
    summary.write(status="finished")
    assert status_of(tmp_path) == "finished"


def test_a_folder_without_summary_says_nothing(tmp_path):
    assert read_summary(tmp_path) is None and status_of(tmp_path) is None


def test_a_full_disk_costs_one_warning(tmp_path, monkeypatch, capsys):
    summary = RunSummary(tmp_path)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "_told", set())
    monkeypatch.setattr("pathlib.Path.write_text", full)
    for step in range(3):
        summary.write(global_step=step)
    said = capsys.readouterr().err
    assert said.count("No space left on device") == 1 and "summary.json" in said
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "running"


@pytest.mark.parametrize("status, kept", [("running", "failed"), ("finished", "finished")])
def test_a_summary_is_closed_if_the_run_could_not(tmp_path, status, kept):
    RunSummary(tmp_path).write(status=status)
    close_summary(tmp_path, "failed", "ValueError: x")
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert facts["status"] == kept and ("error" in facts) is (kept == "failed")


def test_a_run_that_had_no_summary_gets_one(tmp_path):
    close_summary(tmp_path, "stopped")
    assert status_of(tmp_path) == "stopped"


@pytest.mark.parametrize("text", ["[]", "7", "null", "{", '["status"]'])
def test_what_is_no_summary_is_none(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    assert read_summary(tmp_path) is None
