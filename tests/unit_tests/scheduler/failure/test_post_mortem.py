"""The black box of a process says how that process ended, whatever its forked children do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlinf.scheduler.failure.post_mortem import read_post_mortem

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
