"""Workers that die: the right one is named, with how and doing what, within seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlinf.scheduler import (
    FlexiblePlacementStrategy,
    WaitTimeout,
    WorkerDied,
    WorkerGroupFuncResult,
    wait_restarted,
)
from rlinf.scheduler.cluster.shutdown import runs
from rlinf.scheduler.deadlines import Deadline
from rlinf.scheduler.failure.process_state import is_stopped
from tests.unit_tests.scheduler.waits import PROMISED, PROMPTLY, wait_until
from tests.unit_tests.scheduler.worker.workers import Doomed, Echo

HOW = {"kill": ("SIGKILL", None), "segv": ("SIGSEGV", None), "exit": (None, 3)}


def slots(count: int) -> FlexiblePlacementStrategy:
    return FlexiblePlacementStrategy([[i] for i in range(count)])


@pytest.mark.parametrize("how", HOW)
def test_death_in_a_call(cluster, tmp_path, how):
    group = Echo.create_group().launch(cluster, slots(3), name="mortal")
    group.say("famous last words").wait()
    pid = group.pid().wait()[1]
    clock = tmp_path / "clock"
    with pytest.raises(WorkerDied) as caught:
        group.die_on_rank(1, how, str(clock)).wait()
    assert time.time() - float(clock.read_text()) < PROMISED
    died = caught.value
    assert (died.worker, died.group, died.rank, died.node_rank, died.pid) == (
        "mortal:1",
        "mortal",
        1,
        0,
        pid,
    )
    assert (died.signal, died.exit_code) == HOW[how]
    assert died.activity == "running die_on_rank()"
    assert any("famous last words" in line for line in died.log_tail)


@pytest.mark.parametrize("then", ["child ends", "child lives"])
def test_death_of_a_worker_that_has_forked(cluster, tmp_path, then):
    group = Echo.create_group().launch(cluster, slots(2), name="parents")
    try:
        with pytest.raises(WorkerDied) as caught:
            group.execute_on(1).fork(str(tmp_path), then).wait(timeout=PROMPTLY)
        assert caught.value.worker == "parents:1"
        assert (caught.value.signal, caught.value.exit_code) == ("SIGKILL", None)
        assert [death.name for death in cluster.deaths()] == ["parents:1"]
    finally:
        (tmp_path / "over").touch()


@pytest.mark.parametrize("how", HOW)
def test_death_in_the_constructor(cluster, how):
    with pytest.raises(WorkerDied) as caught:
        Doomed.create_group(how).launch(cluster, slots(2), name="stillborn")
    assert caught.value.worker == "stillborn:1"
    assert (caught.value.signal, caught.value.exit_code) == HOW[how]
    assert caught.value.activity == "running __init__"


def test_death_between_calls(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="idle")
    os.kill(group.pid().wait()[0], signal.SIGKILL)
    wait_until(cluster.deaths)
    with pytest.raises(WorkerDied) as caught:
        group.add().wait(timeout=PROMPTLY)
    assert (caught.value.worker, caught.value.activity) == ("idle:0", "idle")


def test_a_hang_in_the_constructor_meets_the_launch_deadline(ray_session, tmp_path, monkeypatch):
    from rlinf.scheduler import Cluster

    glance, limit = WorkerGroupFuncResult._glance, 5 * PROMPTLY

    def patient(call: WorkerGroupFuncResult, deadline: Deadline) -> object:
        """Lets the deadline come when one rank is up and the other hangs, however slowly."""
        if call.method != "__init__":
            return glance(call, deadline)
        assert deadline.seconds == limit
        server = cluster._server
        wait_until(lambda: "stuck:0" in server.state.ready, limit)
        names = ["stuck:1"]
        wait_until(
            lambda: "__init__" in server.inquire("status", None, names, limit).get(names[0], ""),
            limit,
        )
        deadline.__init__(0.0)
        return glance(call, deadline)

    monkeypatch.setattr(WorkerGroupFuncResult, "_glance", patient)
    cfg = {"num_nodes": 1, "timeouts": {"launch": limit}}
    with Cluster(cluster_cfg=cfg, distributed_log_dir=str(tmp_path)) as cluster:
        with pytest.raises(WaitTimeout) as caught:
            Doomed.create_group("hang").launch(cluster, slots(2), name="stuck")
        assert "stuck:1" in str(caught.value) and "running __init__" in str(caught.value)
        assert "stuck:0" not in str(caught.value)


def test_a_stopped_process_is_recognised(cluster):
    group = Echo.create_group().launch(cluster, slots(2), name="stopped")
    pid = group.pid().wait()[1]
    call = group.die_on_rank(1, "stop")
    wait_until(lambda: is_stopped(pid))
    with pytest.raises(WaitTimeout) as caught:
        call.wait(timeout=1)
    os.kill(pid, signal.SIGCONT)
    assert "stopped:1" in str(caught.value) and "stopped by a signal" in str(caught.value)


def test_a_death_explains_the_errors_of_the_others(cluster):
    """Rank 0 fails because rank 1 died; the death is what is reported."""
    group = Echo.create_group().launch(cluster, slots(2), name="echo")

    with pytest.raises(WorkerDied, match="echo:1"):
        handles = group.execute_on(0, 1)
        handles.die_on_rank(1, "kill").wait()


def test_device_lock_serialises_and_is_freed_by_death(cluster):
    strategy = FlexiblePlacementStrategy([[0], [0]])
    group = Echo.create_group().launch(cluster, strategy, name="locked")
    (a, b), (c, d) = group.lock_for(0.2).wait()
    assert b <= c or d <= a
    group.execute_on(0).take_lock().wait()
    with pytest.raises(WaitTimeout, match="held by locked:0"):
        group.execute_on(1).take_lock(0.3).wait()
    os.kill(group.pid().wait()[0], signal.SIGKILL)
    group.execute_on(1).take_lock(PROMPTLY).wait()
    group.execute_on(1).give_lock().wait()
    with pytest.raises(ValueError, match="does not hold the lock"):
        group.execute_on(1).give_lock().wait()


def test_a_restarted_rank_comes_back_under_its_address(cluster):
    group = Echo.create_group(3).launch(
        cluster, slots(2), name="phoenix", restart={"on_failure": 1}
    )
    before = group.pid().wait()
    call = group.die_on_rank(1, "kill")
    with pytest.raises(WorkerDied, match="phoenix:1"):
        call.wait()
    call.cancel()
    assert wait_restarted(group, timeout=60) == [1]
    after = group.execute_on(1).pid().wait(timeout=PROMPTLY)
    assert after[0] != before[1]
    assert group.execute_on(1).add().wait() == [4]
    infos = cluster._runtime.registry.ask("group", group="phoenix")
    assert [(i.rank, i.incarnation) for i in infos] == [(0, 0), (1, 1)]
    assert infos[1].pid == after[0]


# -- whole programs --------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
from rlinf.scheduler import Cluster, FlexiblePlacementStrategy
from tests.unit_tests.scheduler.worker.workers import Echo

def main():
    cluster = Cluster(num_nodes=1, distributed_log_dir={logs!r})
    strategy = FlexiblePlacementStrategy([[0], [1], [2]])
    group = Echo.create_group().launch(cluster, strategy, name="crew")
    print("pids", *group.pid().wait(), flush=True)
    {body}

main()
"""


def run_program(
    tmp_path, body: str, kill: int | None = None, address: str | None = None
) -> tuple[int, str, list[int], float]:
    """Runs a driver program; returns code, output, pids of its workers, seconds to end."""
    here = os.path.dirname(__file__)
    text = PROGRAM.format(logs=str(tmp_path / "logs"), body=body)
    script = tmp_path / "program.py"
    script.write_text(text)
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_ADDRESS")}
    root = os.path.abspath(os.path.join(here, "../../../.."))
    env["PYTHONPATH"] = root
    if address is not None:
        env["RAY_ADDRESS"] = address
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("pids"):
            break
    pids = [int(p) for p in lines[-1].split()[1:]]
    everyone = []
    for pid in pids:
        # Some bodies end one of them at once.
        with contextlib.suppress(psutil.NoSuchProcess):
            everyone.append(psutil.Process(pid))
    with contextlib.suppress(psutil.NoSuchProcess):
        everyone += psutil.Process(process.pid).children(recursive=True)
    begin = time.monotonic()
    if kill is not None:
        time.sleep(0.5)
        process.send_signal(kill)
    # Not communicate(), which loses what came together with the line of pids.
    with process:
        out = process.stdout.read()
    seconds = time.monotonic() - begin
    deadline = time.monotonic() + 60
    while (alive := [p for p in everyone if runs(p)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for left in alive:
        left.kill()
    assert not alive, f"left behind: {alive}"
    return process.returncode, "".join(lines) + out, pids, seconds


@pytest.mark.timeout(240)
def test_an_uncaught_death_ends_the_run_with_one_card(tmp_path):
    code, output, pids, _ = run_program(tmp_path, "group.die_on_rank(2, 'segv').wait()")
    assert code == 1
    assert output.count("RUN FAILED") == 1
    card = json.loads((tmp_path / "logs" / "failure.json").read_text())
    assert card["who"] == "crew:2"
    assert "SIGSEGV" in card["what"]
    assert str(pids[2]) in card["where"]
    assert card["doing"] == "running die_on_rank()"
    assert card["cause"] and card["change"] and card["when"]


@pytest.mark.timeout(240)
def test_an_uncaught_exception_names_the_worker_and_method(ray_address, tmp_path):
    body = "group.execute_on(1).fail().wait()"
    code, output, _, _ = run_program(tmp_path, body, address=ray_address)
    assert code == 1
    card = json.loads((tmp_path / "logs" / "failure.json").read_text())
    assert (card["who"], card["doing"]) == ("crew:1", "running fail()")
    assert card["what"] == "ValueError: this method fails"
    assert any("workers.py" in line for line in card["evidence"])
    assert "ValueError: this method fails" in output
    # The card comes last and whole; the tracebacks are in the file that it names.
    assert output.rstrip().endswith("┘") and "\nTraceback (most recent" not in output
    whole = Path(card["traceback"]).read_text()
    assert "The above exception was the direct cause" in whole and "in fail" in whole


@pytest.mark.timeout(240)
def test_a_caught_failure_is_not_blamed_for_a_later_one(ray_address, tmp_path):
    body = """
    try:
        group.execute_on(1).fail().wait()
    except ValueError:
        pass
    raise SystemError("the driver itself")"""
    code, _, _, _ = run_program(tmp_path, body, address=ray_address)
    card = json.loads((tmp_path / "logs" / "failure.json").read_text())
    assert (code, card["who"]) == (1, "driver")
    assert card["what"] == "SystemError: the driver itself"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("body, expected", [("sys.exit(5)", 5), ("pass", 0)])
def test_the_exit_code_is_the_one_asked_for(ray_address, tmp_path, body, expected):
    # The one that goes well also ends a Ray of its own.
    address = None if expected == 0 else ray_address
    code, output, _, _ = run_program(tmp_path, body, address=address)
    assert code == expected
    assert "RUN FAILED" not in output


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number, expected", [(signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_a_killed_driver_leaves_nothing_behind(tmp_path, number, expected):
    code, _, _, seconds = run_program(tmp_path, "group.sleep(600).wait()", kill=number)
    assert code == expected
    assert seconds < 100
