"""A job that hangs, crashes or floods costs itself only, and nothing survives it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlinf.utils.processes import child, pool
from rlinf.utils.processes.pool import PoolFailed, ProcessPool, ProcessSpec
from tests.unit_tests.utils.processes.alive import is_alive

JOBS = "tests.unit_tests.utils.processes.jobs"


def pool_of(target: str = "make", *args: str, confined: bool = False, **settings) -> ProcessPool:
    memory = settings.pop("memory_mb", 0)
    spec = ProcessSpec(f"{JOBS}:{target}", args or ("hello",), confined, memory)
    if target != "make":
        spec = ProcessSpec(f"{JOBS}:{target}", (), confined, memory)
    return ProcessPool(spec, **{"timeout": 60.0, **settings})


def wait_until(condition: Callable[[], object]) -> None:
    """Waits for what must happen; the time is for a machine that is busy with other things."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def pool_of_two():
    pool = pool_of(processes=2, max_output=1 << 16, memory_mb=512)
    pool.wait_ready()
    yield pool
    pool.close()


def test_outcomes_come_in_the_order_of_the_jobs_whatever_happens(pool_of_two):
    pool = pool_of_two
    bad = [("leave",), ("segfault",), ("flood", 1 << 20), ("fail",), ("hog",)]
    bad += [("leave_interpreter",), ("late",), ("not_plain",)]
    jobs = [job for i, job in enumerate(bad) for job in (("echo", i), job)]
    outcomes = pool.map([*jobs, ("echo", "last")])
    good = outcomes[::2]
    assert [o.value for o in good] == [["hello", i] for i in (*range(len(bad)), "last")]
    found = [(o.status, o.message) for o in outcomes[1::2]]
    assert [status for status, _ in found] == [
        "crash",
        "crash",
        "output",
        "error",
        "crash",
        "error",
        "timeout",
        "error",
    ]
    words = ["exit code 7", "SIGSEGV", "65536 bytes", "KeyError: 'missing'"]
    words += ["out of memory", "SystemExit", "gave up", "not JSON serializable"]
    for (_, message), word in zip(found, words, strict=True):
        assert word in message


def test_a_job_that_hangs_is_ended_and_its_process_replaced():
    pool = pool_of(processes=1, timeout=1.0)
    try:
        outcome = pool.map([("hang",)])[0]
        assert outcome.status == "timeout" and "within 1 s" in outcome.message
        # A busy machine may need more than a second for the next one, too.
        wait_until(lambda: pool.map([("echo", 1)])[0].value == ["hello", 1])
    finally:
        pool.close()


ODD = {
    "no JSON": b"certainly",
    "no mapping": b"[1]",
    "no status": b"{}",
    "a status of its own": b'{"status": "wonderful", "value": 1}',
    "a status of another type": b'{"status": ["ok"]}',
    "nested too deeply": b"[" * 100_000,
    "no text": b"\xff\xfe",
}


def test_an_odd_answer_costs_its_own_job():
    pool = pool_of(processes=1)
    try:
        for answer in ODD.values():
            outcome, after = pool.map([("say", answer), ("echo", 1)])
            assert outcome.status == "crash" and outcome.message
            assert after.value == ["hello", 1]
        more = b'{"status": "ok", "value": 1, "message": null, "surplus": 2}'
        assert pool.map([("say", more)])[0].value == 1
        assert pool.map([("say_raw", b"\xff" * 100)])[0].status == "crash"
        assert pool.map([("echo", 2)])[0].value == ["hello", 2]
    finally:
        pool.close()


def test_what_a_process_says_or_does_after_its_answer_is_not_for_the_next_job():
    pool = pool_of(processes=1)
    (thread,) = pool._threads
    try:
        assert pool.map([("say_twice", b'{"status": "ok", "value": "first"}')])[0].value == "first"
        wait_until(lambda: not thread._child.waits)
        assert pool.map([("echo", 1)])[0].value == ["hello", 1]
        pid = pool.map([("pid",)])[0].value
        os.kill(pid, 9)
        wait_until(lambda: not thread._child.waits)
        assert pool.map([("echo", 2)])[0].value == ["hello", 2]
    finally:
        pool.close()


def test_whatever_goes_wrong_in_the_thread_that_feeds_is_an_outcome(monkeypatch):
    pool = pool_of(processes=1)
    try:
        pool.wait_ready()
        with monkeypatch.context() as patch:
            patch.setattr(child.ChildProcess, "ask", lambda *_: 1 / 0)
            outcome = pool.submit("echo").result(timeout=60)
            assert outcome.status == "crash" and "ZeroDivisionError" in outcome.message
            outcome = pool.submit("echo").result(timeout=60)
            assert "no process could be started" in outcome.message
        assert pool.map([("echo", 1)])[0].value == ["hello", 1]
    finally:
        pool.close()


def test_output_below_the_limit_is_nothing_special_and_does_not_add_up(pool_of_two):
    for _ in range(5):
        outcomes = pool_of_two.map([("flood", 40_000), ("flood", 40_000)])
        assert [o.value for o in outcomes] == ["done", "done"]


def test_a_process_serves_many_jobs_and_is_replaced_when_it_is_gone():
    pool = pool_of(processes=1)
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
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: not is_alive(pid))
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
    pool = pool_of(processes=1, timeout=600.0)
    pool.wait_ready()
    running, waiting = pool.submit("hang"), pool.submit("echo")
    wait_until(running.running)
    pids = pool.pids
    pool.close()
    assert running.result().status == "crash"
    assert waiting.cancelled()
    assert not any(map(is_alive, pids))


def test_a_process_that_is_started_while_the_pool_is_closed_ends(monkeypatch):
    """The order that hurts: closing looks for a process to end before there is one."""
    closing = threading.Event()
    dumps = pool.pickle.dumps

    def dump_when_closing(value: object) -> bytes:
        assert closing.wait(60)
        return dumps(value)

    monkeypatch.setattr(pool.pickle, "dumps", dump_when_closing)
    slow = pool_of("never_ready", start_timeout=600.0)
    (thread,) = slow._threads
    stop = thread.stop

    def stop_first() -> None:
        stop()
        closing.set()

    monkeypatch.setattr(thread, "stop", stop_first)
    slow.close()
    assert not thread.is_alive()
    with pytest.raises(PoolFailed, match="closed"):
        slow.wait_ready()


def test_a_process_that_nobody_can_end_is_not_waited_for_forever(monkeypatch):
    """As one in a file system that does not answer: signals do not reach it."""
    pool = pool_of(processes=1)
    pool.wait_ready()
    (pid,) = pool.pids
    with monkeypatch.context() as patch:
        patch.setattr(child, "kill_family", lambda pid: None)
        patch.setattr(child, "BURY_SECONDS", 0.1)
        pool._threads[0]._drop()
    assert is_alive(pid)
    assert pool.map([("echo", 1)])[0].value == ["hello", 1]
    os.kill(pid, 9)
    pool.close()


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
    wait_until(lambda: not is_alive(pid))
