"""A job that hangs, crashes or floods costs itself only, and nothing survives it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlinf.utils.processes.pool import PoolFailed, ProcessPool, Servant
from tests.unit_tests.utils.processes.alive import is_alive

JOBS = "tests.unit_tests.utils.processes.jobs"


def pool_of(target: str = "make", *args: str, confined: bool = False, **settings) -> ProcessPool:
    memory = settings.pop("memory_mb", 0)
    servant = Servant(f"{JOBS}:{target}", args or ("hello",), confined, memory)
    if target != "make":
        servant = Servant(f"{JOBS}:{target}", (), confined, memory)
    return ProcessPool(servant, **{"timeout": 5.0, **settings})


@pytest.fixture(scope="module")
def pool():
    # Long enough for a busy machine to come to a crash; what hangs is waited for as long.
    pool = pool_of(processes=2, timeout=4.0, max_output=1 << 16, memory_mb=1024)
    pool.wait_ready()
    yield pool
    pool.close()


def test_outcomes_come_in_the_order_of_the_jobs_whatever_happens(pool):
    bad = [("hang",), ("leave",), ("segfault",), ("flood", 1 << 20), ("fail",), ("hog",)]
    bad += [("leave_interpreter",), ("late",), ("not_plain",)]
    jobs = [job for i, job in enumerate(bad) for job in (("echo", i), job)]
    outcomes = pool.map([*jobs, ("echo", "last")])
    good = outcomes[::2]
    assert [o.value for o in good] == [["hello", i] for i in (*range(len(bad)), "last")]
    found = [(o.status, o.message) for o in outcomes[1::2]]
    assert [status for status, _ in found] == [
        "timeout",
        "crash",
        "crash",
        "output",
        "error",
        "crash",
        "error",
        "timeout",
        "error",
    ]
    words = ["within 4 s", "exit code 7", "SIGSEGV", "65536 bytes", "KeyError: 'missing'"]
    words += ["out of memory", "SystemExit", "gave up", "not JSON serializable"]
    for (_, message), word in zip(found, words, strict=True):
        assert word in message


def test_output_below_the_limit_is_nothing_special_and_does_not_add_up(pool):
    for _ in range(5):
        outcomes = pool.map([("flood", 40_000), ("flood", 40_000)])
        assert [o.value for o in outcomes] == ["done", "done"]


def test_a_process_serves_many_jobs_and_is_replaced_when_it_is_gone():
    pool = pool_of(processes=1, timeout=0.5)
    try:
        first = {o.value for o in pool.map([("pid",)] * 5)}
        assert len(first) == 1
        assert pool.map([("leave",)])[0].status == "crash"
        second = {o.value for o in pool.map([("pid",)] * 5)}
        assert len(second) == 1 and first != second
        assert not is_alive(first.pop())
        assert pool.pids == list(second)
    finally:
        pool.close()
    assert not is_alive(second.pop())
    with pytest.raises(PoolFailed, match="closed"):
        pool.submit("pid")


def test_what_a_killed_job_has_started_is_killed_too(tmp_path):
    pool = pool_of(processes=1, timeout=1.0)
    try:
        outcome = pool.map([("daemon_then_hang", str(tmp_path / "pid"))])[0]
        assert outcome.status == "timeout"
        # A signal has been sent; the kernel ends the process when it comes to it.
        deadline = time.monotonic() + 60
        while is_alive(int((tmp_path / "pid").read_text())):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        pool.close()


def test_a_confined_process_can_do_nothing_but_compute(tmp_path):
    path = tmp_path / "kept"
    path.write_text("mine")
    pool = pool_of(confined=True)
    try:
        words = pool.wait_ready()
        found = pool.map([("forbidden", str(path))])[0].value
    finally:
        pool.close()
    assert "NOT" not in words and "no network" in words
    assert set(found.values()) == {"PermissionError"}, found
    assert path.read_text() == "mine"


def test_processes_that_cannot_start_say_why():
    pool = pool_of("make_nothing")
    with pytest.raises(PoolFailed, match="LookupError: there is nothing to make"):
        pool.wait_ready()
    outcome = pool.submit("echo").result()
    assert outcome.status == "crash" and "nothing to make" in outcome.message
    pool.close()
    slow = pool_of("never_ready", start_timeout=0.5)
    with pytest.raises(PoolFailed, match="no answer within 0.5 s"):
        slow.wait_ready()
    slow.close()


def test_closing_ends_running_jobs_and_cancels_the_others():
    pool = pool_of(processes=1, timeout=60.0)
    pool.wait_ready()
    running, waiting = pool.submit("hang"), pool.submit("echo")
    while not running.running():
        time.sleep(0.01)
    time.sleep(0.1)
    pids = pool.pids
    pool.close()
    assert running.result().status == "crash"
    assert waiting.cancelled()
    assert not any(map(is_alive, pids))


def test_processes_die_with_their_owner():
    program = (
        "import os\n"
        "from tests.unit_tests.utils.processes.test_pool import pool_of\n"
        "pool = pool_of()\n"
        "print(pool.map([('pid',)])[0].value, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parents[4]
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, cwd=root
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)
