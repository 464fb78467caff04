"""Spans come back as they were recorded, also when the process was killed."""

from __future__ import annotations

import threading
import time

import pytest

from rlinf.scheduler import trace
from rlinf.scheduler.trace import BLOCK, CALL, WAIT, Recorder, read_spans


def test_spans_come_back_in_order_and_on_the_clock_of_the_day(tmp_path):
    recorder = Recorder(str(tmp_path / "rank_0.trace"))
    now = time.perf_counter()
    recorder.add("training", BLOCK, now + 1.0, now + 1.5)
    recorder.add("run_training", CALL, now, now + 2.0)
    thread = threading.Thread(target=recorder.add, args=("écoute", WAIT, now + 3, now + 3.25))
    thread.start()
    thread.join()
    recorder.close()
    spans = read_spans(tmp_path / "rank_0.trace")
    assert [s.name for s in spans] == ["run_training", "training", "écoute"]
    assert [s.kind for s in spans] == [CALL, BLOCK, WAIT]
    assert [round(s.seconds, 6) for s in spans] == [2.0, 0.5, 0.25]
    assert abs(spans[0].begin / 1e9 - time.time()) < 5
    assert spans[0].thread == spans[1].thread != spans[2].thread


def test_what_was_flushed_survives_and_a_cut_record_is_left_out(tmp_path):
    path = tmp_path / "rank_0.trace"
    recorder = Recorder(str(path))
    for number in range(3):
        recorder.add(f"step {number}", BLOCK, number, number + 1)
    recorder.flush()
    recorder.add("lost with the process", BLOCK, 9, 10)
    path.write_bytes(path.read_bytes()[:-5])
    assert [s.name for s in read_spans(path)] == ["step 0", "step 1"]


def test_a_restarted_process_keeps_what_the_first_one_wrote(tmp_path):
    for name in ("first life", "second life"):
        recorder = Recorder(str(tmp_path / "rank_0.trace"))
        recorder.add(name, BLOCK, 0, 1)
        recorder.close()
    found = [s.name for p in sorted(tmp_path.iterdir()) for s in read_spans(p)]
    assert found == ["first life", "second life"]


def test_no_trace_is_told(tmp_path):
    (tmp_path / "x.trace").write_bytes(b"something else entirely")
    with pytest.raises(ValueError, match="not a trace"):
        read_spans(tmp_path / "x.trace")


def test_nothing_is_recorded_unless_started():
    assert trace.current() is None
    trace.mark_step(1, 0.0)


def test_a_full_disk_ends_the_timeline_and_nothing_else(monkeypatch, capsys, tmp_path):
    # What is opened is a disk that is always full, except for the header.
    recorder = Recorder(str(tmp_path / "full.trace"))
    recorder._file.close()
    recorder._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    for number in range(2000):
        recorder.add(f"span {number}", trace.BLOCK, 0.0, 1.0)
    recorder.flush()
    recorder.close()
    assert recorder.dropped == 2000
    said = capsys.readouterr().err
    assert said.count("the timeline of this process ends here") == 1 and "No space left" in said


def test_a_timeline_that_cannot_be_begun_is_told(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    trace.start(str(tmp_path / "file" / "driver.trace"))
    assert trace.current() is None
    assert "this process has no timeline" in capsys.readouterr().err
