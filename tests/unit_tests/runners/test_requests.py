"""A run is asked to stop or to save by files; those that are not for it do nothing."""

from __future__ import annotations

import os
import socket

import pytest

from rlinf.runners.requests import (
    CHECKPOINT,
    FOLDER,
    STOP,
    NotRunning,
    RunRequests,
    ask,
    has_ended,
    is_asked,
    running,
)
from rlinf.utils.runs import RunLock, RunSummary


@pytest.fixture
def lock(tmp_path):
    """A run of this process."""
    lock = RunLock(tmp_path)
    RunSummary(tmp_path)
    yield lock
    lock.release()


def test_a_request_reaches_the_run(tmp_path, lock):
    requests = RunRequests(tmp_path)
    requests.look()
    assert not requests.stop and not requests.checkpoint
    holder = running(tmp_path)
    assert (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname())
    ask(tmp_path, STOP, holder)
    assert is_asked(tmp_path, STOP, holder) and not is_asked(tmp_path, CHECKPOINT, holder)
    requests.look()
    assert requests.stop
    assert is_asked(tmp_path, STOP, holder), "until the run has ended"
    requests.close()
    assert not (tmp_path / FOLDER).exists()


def test_everybody_who_asks_for_a_checkpoint_is_answered(tmp_path, lock):
    requests = RunRequests(tmp_path)
    first, second = (ask(tmp_path, CHECKPOINT, running(tmp_path)) for _ in range(2))
    requests.look()
    assert requests.checkpoint and requests.saving is None
    requests.begin_save(12)
    assert not requests.checkpoint and requests.saving == 12
    assert first.answer() is None
    late = ask(tmp_path, CHECKPOINT, running(tmp_path))
    requests.look()
    requests.end_save(tmp_path / "checkpoints" / "global_step_12")
    for request in (first, second):
        assert request.answer() == {
            "step": 12,
            "path": str(tmp_path / "checkpoints" / "global_step_12"),
        }
    assert requests.saving is None
    assert requests.checkpoint and late.answer() is None, "it was asked for after that step"
    requests.begin_save(13)
    requests.end_save(None)
    assert late.answer() == {"step": 13, "path": None}


def test_requests_for_an_earlier_run_of_the_folder_do_nothing(tmp_path):
    earlier = RunLock(tmp_path)
    RunSummary(tmp_path)
    holder = running(tmp_path)
    for what in (STOP, CHECKPOINT):
        ask(tmp_path, what, holder)
    (tmp_path / FOLDER / "stop-cafe.json").write_text("{ damaged")
    earlier.release()
    assert has_ended(tmp_path, holder)
    lock = RunLock(tmp_path)
    requests = RunRequests(tmp_path)
    requests.look()
    assert not requests.stop and not requests.checkpoint
    assert os.listdir(tmp_path / FOLDER) == [], "they are gone"
    assert has_ended(tmp_path, holder), "the run that it was asked of has ended all the same"
    lock.release()


def test_a_run_that_has_ended_cannot_be_asked(tmp_path, lock):
    RunSummary(tmp_path).write(status="finished")
    lock.release()
    with pytest.raises(NotRunning, match="is not running: its status is finished"):
        running(tmp_path)
    with pytest.raises(NotRunning, match="is not the folder of a run"):
        running(tmp_path / "elsewhere")


def test_what_a_run_on_another_host_says_of_itself_counts(tmp_path, lock, monkeypatch):
    """Its lock may not be seen here."""
    holder = running(tmp_path) | {"host": "elsewhere"}
    monkeypatch.setattr("rlinf.runners.requests.holder_of", lambda folder: holder)
    monkeypatch.setattr("rlinf.utils.runs.summary.holder_of", lambda folder: holder)
    assert running(tmp_path) == holder and not has_ended(tmp_path, holder)
    RunSummary(tmp_path).write(status="stopped")
    assert has_ended(tmp_path, holder)
    with pytest.raises(NotRunning, match="its status is stopped"):
        running(tmp_path)
