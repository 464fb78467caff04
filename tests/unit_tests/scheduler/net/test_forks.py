"""The end of a process is noticed although a forked child of it goes on."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys

import pytest

from tests.unit_tests.scheduler.small_run import in_thread
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

PROGRAM = """
import os, pickle, sys
from rlinf.scheduler.errors import SchedulerError
from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.current import has_runtime, set_current_runtime
from rlinf.scheduler.worker.runtime import ProcessRuntime

def say(line):
    # One write per line: lines of parent and child do not mix.
    os.write(1, (line + chr(10)).encode())

run = pickle.load(open(sys.argv[1], "rb"))
node = int(sys.argv[2])
here = ProcessRuntime("parent:0", run, node, ["127.0.0.1"])
set_current_runtime(here)
here.registry.ask("register", info=WorkerInfo(WorkerAddress.from_name("parent:0"), 0, 1,
    cluster_node_rank=node, pid=os.getpid(), endpoints=here.endpoint.addresses))
here.mailbox.send("other:0", "hello").wait()
here.mailbox.recv("other:0").wait()
if os.fork() == 0:
    for use in (lambda: here.mailbox.send("other:0", "of the child"),
                lambda: here.mailbox.recv("other:0")):
        try:
            use()
        except SchedulerError as error:
            say(f"{has_runtime()} {error}")
    sys.stdin.read()
    os._exit(0)
say("forked")
here.mailbox.send("other:0", "still here").wait()
here.mailbox.recv("other:0").wait(600)
"""


@pytest.mark.parametrize("node", [0, 1], ids=["same node", "other node"])
def test_a_living_child_does_not_hide_the_end_of_its_parent(two_nodes, tmp_path, node):
    (tmp_path / "run").write_bytes(pickle.dumps(two_nodes._spec))
    other = two_nodes.join("other:0")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), str(node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process, contextlib.ExitStack() as at_end:
        at_end.callback(process.kill)
        assert (
            in_thread(lambda: other.mailbox.recv("parent:0").wait(3 * PROMPTLY)).wait() == "hello"
        )
        other.mailbox.send("parent:0", "hello").wait()
        *child, parent = sorted(process.stdout.readline() for _ in range(3))
        assert parent == "forked\n"
        assert all(said.startswith("False ") and "forked child" in said for said in child)
        message = in_thread(lambda: other.mailbox.recv("parent:0").wait(PROMPTLY)).wait()
        assert message == "still here", "the parent goes on as before"
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: "parent:0" in other.registry.dead)
        wait_until(lambda: other.endpoint.ended("parent:0"))
        # The child is still there: it has the other end of this pipe.
        process.stdin.close()
        assert process.stdout.read() == ""
