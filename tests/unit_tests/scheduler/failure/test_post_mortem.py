"""The black box of a process says how that process ended, whatever its forked children do."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.scheduler.failure import post_mortem
from rlinf.scheduler.failure.post_mortem import read_post_mortem
from rlinf.scheduler.failure.record import HEAD, crash_file, earlier_file

PROGRAM = """
import os, signal, sys
from pathlib import Path
from rlinf.scheduler.failure.record import PostMortemRecord

box = PostMortemRecord(Path(sys.argv[1]))
box.rest("idle")
child = os.fork()
if child == 0:
    box.enter("something of the child's")
    {end}
os.waitpid(child, 0)
os.kill(os.getpid(), signal.SIGKILL)
"""

ENDS = {
    "exit": "os._exit(0)",
    "failure": "os._exit(3)",
    "crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "stacks": "os.kill(os.getpid(), signal.SIGUSR2)",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_forked_child_is_not_that_of_the_process(tmp_path, end):
    box = tmp_path / "rank_0.record"
    program = PROGRAM.format(end=ENDS[end])
    done = subprocess.run([sys.executable, "-c", program, str(box)], stderr=subprocess.DEVNULL)
    assert done.returncode == -9
    left = read_post_mortem(str(box), "")
    assert (left.exit_code, left.signal, left.crash) == (None, None, "")
    assert left.activity.startswith("idle")


def test_the_exit_of_the_process_itself_is_noted(tmp_path):
    box = tmp_path / "rank_0.record"
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from rlinf.scheduler.failure.record import PostMortemRecord\n"
        "PostMortemRecord(Path(sys.argv[1])); os._exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(box)]).returncode == 3
    assert read_post_mortem(str(box), "").exit_code == 3


def leave(path: Path, pid: int, crash: str) -> None:
    """Writes what a process leaves."""
    activity = b"a step"
    head = HEAD.pack(pid, 0.0, len(activity)) + activity
    path.write_bytes(head + bytes(4096 - len(head)))
    crash_file(path).write_text(crash)


@pytest.mark.parametrize("moment", range(6))
def test_the_crash_of_a_process_is_found_while_the_next_one_takes_its_name(
    tmp_path, monkeypatch, moment
):
    path = tmp_path / "rank_0.record"
    leave(path, 1, "Fatal Python error: Segmentation fault")
    steps = iter(
        [
            lambda: os.replace(crash_file(path), earlier_file(crash_file(path))),
            lambda: os.replace(path, earlier_file(path)),
            lambda: leave(path, 2, ""),
        ]
    )
    looks = itertools.count()

    def looked_at(asked: Path) -> Path:
        if next(looks) >= moment:
            next(steps, lambda: None)()
        return crash_file(asked)

    monkeypatch.setattr(post_mortem, "crash_file", looked_at)
    found = read_post_mortem(str(path), "", pid=1)
    assert (found.pid, found.signal) == (1, "SIGSEGV")


def test_a_process_that_ended_before_it_had_a_crash_file(tmp_path):
    path = tmp_path / "rank_0.record"
    leave(path, 1, "")
    crash_file(path).unlink()
    assert read_post_mortem(str(path), "", pid=1).pid == 1
