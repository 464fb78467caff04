"""However a shutdown goes, all of it is done, and the run's own error is the one that is raised."""

from __future__ import annotations

import os
import threading
import time

import psutil
import pytest

from rlinf.scheduler import Cluster, FlexiblePlacementStrategy, WaitTimeout, Worker
from rlinf.scheduler.cluster.shutdown import after, attempt, in_time, leave_ray, runs
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


class Stubborn(Worker):
    """Does not come to an end when it is asked to."""

    def __init__(self, fails: bool = False):
        super().__init__()
        if fails:
            raise ArithmeticError("not to be started")

    def pid(self) -> int:
        return os.getpid()

    def on_shutdown(self) -> None:
        time.sleep(3600)


ONE = FlexiblePlacementStrategy([[0]])


def started(tmp_path, **timeouts: float) -> Cluster:
    cfg = {"num_nodes": 1, "timeouts": timeouts}
    return Cluster(cluster_cfg=cfg, distributed_log_dir=str(tmp_path))


def test_a_worker_that_does_not_end_costs_its_deadline_and_not_the_error(ray_session, tmp_path):
    with pytest.raises(ValueError, match="the run's own error"):
        with started(tmp_path, shutdown=1.0) as cluster:
            group = Stubborn.create_group().launch(cluster, ONE)
            process = psutil.Process(group.pid().wait()[0])
            raise ValueError("the run's own error")
    wait_until(lambda: not runs(process))
    assert "the run's own error" in (tmp_path / "failure.json").read_text()


def test_whatever_fails_in_a_shutdown_the_rest_is_done(ray_session, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise WaitTimeout("them to end", seconds=1.0)

    with pytest.raises(ValueError, match="the run's own error"):
        with started(tmp_path) as cluster:
            group = Stubborn.create_group().launch(cluster, ONE)
            process = psutil.Process(group.pid().wait()[0])
            monkeypatch.setattr(cluster._groups._shutdown, "end", fail)
            monkeypatch.setattr(cluster, "_report_unread", fail)
            raise ValueError("the run's own error")
    said = capsys.readouterr().err
    assert "ending the workers failed (WaitTimeout: " in said
    assert not Cluster.has_initialized()
    # The registry has gone, and with it what workers live for.
    wait_until(lambda: not runs(process))
    with started(tmp_path / "next") as cluster:
        assert Stubborn.create_group().launch(cluster, ONE).world_size == 1
        cluster.run.timeouts["shutdown"] = 1.0
        cluster._groups._shutdown._seconds = 1.0


def test_a_group_that_cannot_be_ended_does_not_hide_why_it_cannot_be_started(cluster, monkeypatch):
    def fail(*_):
        raise WaitTimeout("it to end", seconds=1.0)

    with monkeypatch.context() as patched:
        patched.setattr(cluster._groups._shutdown, "end", fail)
        with pytest.raises(ArithmeticError, match="not to be started"):
            Stubborn.create_group(fails=True).launch(cluster, ONE)


def test_a_part_without_a_deadline_gets_one(capsys):
    never = threading.Event()
    with attempt("waiting for what never comes"):
        in_time(0.1, "what never comes", lambda: never.wait(PROMPTLY) and None)
    never.set()
    assert "waiting for what never comes failed (WaitTimeout: " in capsys.readouterr().err
    with pytest.raises(KeyError):
        in_time(PROMPTLY, "a mistake", lambda: {}["x"])


def test_help_comes_only_to_those_who_take_too_long():
    helped = threading.Event()
    with after(0.1, helped.set):
        assert helped.wait(PROMPTLY)
    for_nothing = threading.Event()
    with after(PROMPTLY, for_nothing.set):
        pass
    assert not for_nothing.is_set()


def test_a_ray_that_does_not_let_go_is_ended(capsys):
    """As Ray does, this one waits for a process."""
    sleeper = psutil.Popen(["sleep", "3600"])

    class Session:
        def close(self) -> None:
            sleeper.wait(PROMPTLY)
            raise OSError("something else")

    leave_ray(Session(), [sleeper], 0.2)
    assert sleeper.wait(PROMPTLY) != 0
    assert "leaving Ray failed (OSError: something else)" in capsys.readouterr().err
