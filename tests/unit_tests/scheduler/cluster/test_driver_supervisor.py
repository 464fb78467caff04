"""What can be found out of a death is told, also if the registry or a node is slow or silent."""

from __future__ import annotations

import os
import threading
import time

import pytest

from rlinf.scheduler import WorkerDied
from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.cluster import driver_supervisor as module
from rlinf.scheduler.cluster.driver_supervisor import DriverSupervisor
from rlinf.scheduler.failure.post_mortem import PostMortem
from rlinf.scheduler.net.auth import new_secret
from rlinf.scheduler.registry.server import RegistryServer
from rlinf.scheduler.spec import RunSpec
from rlinf.scheduler.topology.node import NodeInfo

NAME = "actor:0"


class Server(RegistryServer):
    """A registry whose members come and go when a test says so."""

    def __init__(self) -> None:
        super().__init__(new_secret(), None)

    def register(self, pid: int, node_rank: int = 1) -> None:
        info = WorkerInfo(WorkerAddress("actor", 0), 0, 1, node_rank, "10.0.0.2", pid=pid)
        with self._lock:
            self.state.register(info)
            self._changed.notify_all()

    def died(self, reason: str) -> None:
        with self._lock:
            self.state.died(NAME, reason)
            self._changed.notify_all()


class Session:
    """A connection to other nodes, on which a test reads what a worker left."""

    def __init__(self, read):
        self._read = read

    def run_on(self, ray_id, function, record, log, pid, timeout):
        return self._read(pid)


def left_by(record, log, pid):
    """What a process that was killed on the driver's node left."""
    return PostMortem(pid=pid, activity="x")


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def supervise(server, tmp_path):
    """Makes the supervisor of a driver on node 0; `read` reads what workers left on node 1."""

    def make(read=None) -> DriverSupervisor:
        run = RunSpec("id", "space", b"secret", [], 0, 2, str(tmp_path), {}, [], [], False)
        nodes = [NodeInfo(0, "10.0.0.1"), NodeInfo(1, "10.0.0.2")]
        return DriverSupervisor("driver", run, None, server, Session(read), nodes, 0, {})

    return make


def test_a_node_that_does_not_answer_does_not_hide_the_death(server, supervise):
    def silent(pid):
        raise TimeoutError("no answer within 20 s")

    server.register(pid=41)
    server.died("the connection broke: timed out")
    died = supervise(silent).explain_death(NAME)
    assert (died.worker, died.node_rank, died.node_ip, died.pid) == (NAME, 1, "10.0.0.2", 41)
    assert died.signal is None and not died.explained
    assert "its node does not answer (TimeoutError: no answer within 20 s)" in died.cause
    assert "the connection broke: timed out" in died.cause


def test_whoever_asks_before_the_registry_has_heard_waits_for_it(server, supervise):
    asked = []

    def read(pid):
        asked.append(pid)
        return PostMortem(pid=pid, activity="running train()")

    server.register(pid=41)
    timer = threading.Timer(0.3, server.died, ("the peer closed the connection",))
    timer.start()
    died = supervise(read).explain_death(NAME, "Ray says so")
    assert asked == [41] and died.signal == "SIGKILL"


def test_the_death_of_a_process_that_came_back_is_not_taken_for_the_one_before(
    server, supervise, monkeypatch
):
    """On the driver's node, where it can be seen that the later process is gone, too."""
    first, second = 2**22 + 1, 2**22 + 2
    monkeypatch.setattr(
        module, "read_post_mortem", lambda record, log, pid: PostMortem(pid=pid, activity="x")
    )
    server.register(first, node_rank=0)
    server.died("the first")
    server.register(second, node_rank=0)
    timer = threading.Timer(0.3, server.died, ("the second",))
    timer.start()
    assert supervise().explain_death(NAME).pid == second


def test_the_past_of_a_process_that_is_back_can_be_asked_at_once(server, supervise, monkeypatch):
    monkeypatch.setattr(
        module, "read_post_mortem", lambda record, log, pid: PostMortem(pid=pid, activity="x")
    )
    monkeypatch.setattr(module, "_HEARD_SECONDS", 3600.0)
    server.register(2**22 + 1, node_rank=0)
    server.died("the first")
    server.register(os.getpid(), node_rank=0)
    assert supervise().explain_death(NAME).pid == 2**22 + 1


def test_a_process_that_lives_is_not_said_to_be_killed(server, supervise, monkeypatch):
    monkeypatch.setattr(module, "_HEARD_SECONDS", 0.1)
    server.register(os.getpid(), node_rank=0)
    died = supervise().with_facts(WorkerDied(NAME, cause="Connection reset by peer"))
    assert (died.pid, died.signal) == (os.getpid(), None)
    assert "still runs" in died.cause and "Connection reset by peer" in died.cause


def test_a_search_ends_although_the_registry_never_hears(server, supervise, monkeypatch):
    monkeypatch.setattr(module, "_HEARD_SECONDS", 0.1)
    server.register(pid=41)
    begin = time.monotonic()
    died = supervise().explain_death(NAME, "Ray says so")
    assert time.monotonic() - begin < 20
    assert died.pid == 41 and "Ray says so" in died.cause


def test_a_card_that_cannot_be_saved_is_shown_and_nothing_is_raised(server, supervise, capsys):
    supervisor = supervise()
    supervisor.reporter._folder = supervisor.folder / "file" / "folder"
    (supervisor.folder / "file").write_text("in the way")
    card = supervisor.explain(ValueError("the run's own error"))
    assert "the run's own error" in card.what and not card.traceback
    assert "NotADirectoryError" in capsys.readouterr().err
