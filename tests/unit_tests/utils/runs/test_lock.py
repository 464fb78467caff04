"""One run at a time has a folder, and others see whether it lives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from rlinf.utils.runs import RunInUse, RunLock
from rlinf.utils.runs.lock import FILE, holder_of

HOLD = """
import sys
from pathlib import Path
from rlinf.utils.runs import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock of a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_folder_in_use_is_refused_and_its_holder_named(tmp_path, other):
    with pytest.raises(RunInUse, match=f"process {other.pid} on {socket.gethostname()}"):
        RunLock(tmp_path)
    assert holder_of(tmp_path)["pid"] == other.pid


def test_a_killed_holder_holds_nothing(tmp_path, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert holder_of(tmp_path) is None
    lock = RunLock(tmp_path)
    assert holder_of(tmp_path)["pid"] == os.getpid()
    lock.release()
    assert holder_of(tmp_path) is None


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    lock = RunLock(tmp_path)
    ready, goes_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(goes_on[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        assert holder_of(tmp_path) is not None, "closing it in the child frees nothing"
        lock.release()
        assert holder_of(tmp_path) is None
    finally:
        os.write(goes_on[1], b"x")
        os.waitpid(child, 0)
        for end in (*ready, *goes_on):
            os.close(end)


def test_a_holder_on_another_host_may_live(tmp_path):
    (tmp_path / FILE).write_text('{"pid": 7, "host": "elsewhere"}\n')
    assert holder_of(tmp_path) == {"pid": 7, "host": "elsewhere"}


def test_a_folder_without_lock_has_no_holder(tmp_path):
    assert holder_of(tmp_path) is None
    (tmp_path / FILE).write_text("")
    assert holder_of(tmp_path) is None
