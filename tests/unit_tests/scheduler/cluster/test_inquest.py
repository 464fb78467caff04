"""What can be found out of a death is told, also if the registry or a node is slow or silent."""

from __future__ import annotations

import os
import threading
import time

import pytest

from rlinf.scheduler import WorkerDied
from rlinf.scheduler.cluster import inquest as module
from rlinf.scheduler.cluster.inquest import Inquest
from rlinf.scheduler.cluster.node import NodeInfo
from rlinf.scheduler.failure.blackbox import Remains
from rlinf.scheduler.registry.state import RegistryState
from rlinf.scheduler.worker.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.worker.spec import RunSpec

NAME = "actor:0"


class Server:
    """The part of the registry that an inquest asks."""

    def __init__(self) -> None:
        self.state = RegistryState()

    def deaths(self):
        return list(self.state.deaths)

    def register(self, pid: int, node_rank: int = 1) -> None:
        info = WorkerInfo(WorkerAddress("actor", 0), 0, 1, node_rank, "10.0.0.2", pid=pid)
        self.state.register(info)


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def hold(server, tmp_path):
    """Makes the inquest of a driver on node 0; workers are on node 1 unless said otherwise."""

    def make(examine_on, node_rank=1) -> Inquest:
        node = NodeInfo(node_rank, "10.0.0.2")
        run = RunSpec("id", "space", b"secret", [], 0, 2, str(tmp_path), {}, [], [], False)
        return Inquest(run, server, 0, lambda name: node, examine_on, {})

    return make


def test_a_node_that_does_not_answer_does_not_hide_the_death(server, hold):
    def silent(*_):
        raise TimeoutError("no answer within 20 s")

    server.register(pid=41)
    server.state.died(NAME, "the connection broke: timed out")
    died = hold(silent).autopsy(NAME)
    assert (died.worker, died.node_rank, died.node_ip, died.pid) == (NAME, 1, "10.0.0.2", 41)
    assert died.signal is None and not died.explained
    assert "its node does not answer (TimeoutError: no answer within 20 s)" in died.cause
    assert "the connection broke: timed out" in died.cause


def test_whoever_asks_before_the_registry_has_heard_waits_for_it(server, hold):
    asked = []

    def examine(node, box, log, pid):
        asked.append(pid)
        return Remains(pid=pid, activity="running train()")

    server.register(pid=41)
    timer = threading.Timer(0.3, server.state.died, (NAME, "the peer closed the connection"))
    timer.start()
    died = hold(examine).autopsy(NAME, "Ray says so")
    assert asked == [41] and died.signal == "SIGKILL"


def test_the_death_of_a_process_that_came_back_is_not_taken_for_the_one_before(
    server, hold, monkeypatch
):
    """On the driver's node, where it can be seen that the later process is gone, too."""
    first, second = 2**22 + 1, 2**22 + 2
    monkeypatch.setattr(module, "examine", lambda box, log, pid: Remains(pid=pid, activity="x"))
    server.register(first, node_rank=0)
    server.state.died(NAME, "the first")
    server.register(second, node_rank=0)
    timer = threading.Timer(0.3, server.state.died, (NAME, "the second"))
    timer.start()
    assert hold(None, node_rank=0).autopsy(NAME).pid == second


def test_the_past_of_a_process_that_is_back_can_be_asked_at_once(server, hold, monkeypatch):
    monkeypatch.setattr(module, "examine", lambda box, log, pid: Remains(pid=pid, activity="x"))
    monkeypatch.setattr(module, "_HEARD_SECONDS", 3600.0)
    server.register(2**22 + 1, node_rank=0)
    server.state.died(NAME, "the first")
    server.register(os.getpid(), node_rank=0)
    assert hold(None, node_rank=0).autopsy(NAME).pid == 2**22 + 1


def test_a_process_that_lives_is_not_said_to_be_killed(server, hold, monkeypatch):
    monkeypatch.setattr(module, "_HEARD_SECONDS", 0.1)
    server.register(os.getpid(), node_rank=0)
    died = hold(None, node_rank=0).with_facts(WorkerDied(NAME, cause="Connection reset by peer"))
    assert (died.pid, died.signal) == (os.getpid(), None)
    assert "still runs" in died.cause and "Connection reset by peer" in died.cause


def test_an_inquest_ends_although_the_registry_never_hears(server, hold, monkeypatch):
    monkeypatch.setattr(module, "_HEARD_SECONDS", 0.1)
    server.register(pid=41)
    begin = time.monotonic()
    died = hold(None).autopsy(NAME, "Ray says so")
    assert time.monotonic() - begin < 20
    assert died.pid == 41 and "Ray says so" in died.cause


def test_a_card_that_cannot_be_saved_is_shown_and_nothing_is_raised(server, hold, capsys):
    inquest = hold(None)
    inquest.reporter._folder = inquest.folder / "file" / "folder"
    (inquest.folder / "file").write_text("in the way")
    inquest.report(ValueError("the run's own error"))
    assert "the run's own error" in capsys.readouterr().err
