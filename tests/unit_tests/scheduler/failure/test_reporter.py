"""Whoever failed first is blamed, in whatever order the driver hears of it."""

from __future__ import annotations

import json
import time

import pytest

from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.channel.errors import KeeperLost
from rlinf.scheduler.errors import RemoteTraceback, WaitTimeout, WorkerDied
from rlinf.scheduler.events import Death
from rlinf.scheduler.failure.reporter import FailureReporter
from rlinf.scheduler.registry.state import RegistryState
from rlinf.scheduler.worker.remote_error import report_of

CLOSED = "Connection closed by peer"


class Run:
    """A run whose failures happen at given seconds, and are told at others."""

    def __init__(self, monkeypatch, folder):
        self.state = RegistryState()
        self.reporter = FailureReporter(self.state, folder, self.explain_death)
        self.folder = folder
        self.begin = time.time()
        self.seconds = 0.0
        monkeypatch.setattr(time, "time", lambda: self.begin + self.seconds)

    def explain_death(self, name: str, message: str) -> WorkerDied:
        pid = [death.info.pid for death in self.state.deaths if death.name == name][-1]
        return WorkerDied(name, node_rank=0, pid=pid, signal="SIGKILL", cause="found out")

    def dies(self, name: str, at: float, pid: int = 7) -> WorkerDied:
        group, _, rank = name.partition(":")
        info = WorkerInfo(WorkerAddress(group, int(rank)), int(rank), 2, 0, "127.0.0.1", pid=pid)
        death = Death(name, info, self.begin + at, len(self.state.deaths), "it has gone")
        self.state.deaths.append(death)
        return WorkerDied(name, node_rank=0, pid=pid, signal="SIGKILL", cause="found out")

    def raises(self, name: str, at: float, error: Exception, heard: bool = True) -> Exception:
        report = report_of(error, name, "train", "trace")
        report.time = self.begin + at
        if heard:
            self.state.raised.append(report)
        error.__cause__ = RemoteTraceback("trace", report)
        return error

    def told(self, error: BaseException, at: float) -> BaseException:
        self.seconds = at
        self.reporter.told(error)
        return error

    def card(self, error: BaseException, at: float) -> dict:
        self.seconds = at
        self.reporter.report(error)
        return json.loads((self.folder / "failure.json").read_text())


@pytest.fixture
def run(monkeypatch, tmp_path):
    return Run(monkeypatch, tmp_path)


@pytest.mark.parametrize("death", [-0.2, 0.3, 2.0])
def test_a_death_told_while_the_failed_run_is_wound_up_is_the_cause(run, death):
    """Also if the registry notices it only after a peer has lost its connection."""
    lost = run.told(run.raises("actor:0", 0.0, ConnectionResetError(CLOSED)), at=0.1)
    run.told(run.dies("actor:1", at=death), at=2.5)
    card = run.card(lost, at=3.0)
    assert (card["who"], card["what"]) == ("actor:1", "the process was killed by SIGKILL")
    assert card["followers"] == ["actor:0"]


def test_a_death_told_a_moment_before_the_failure_is_the_cause(run):
    run.told(run.dies("actor:1", at=0.0), at=0.5)
    lost = run.told(run.raises("actor:0", 0.6, ConnectionResetError(CLOSED)), at=1.0)
    assert run.card(lost, at=1.1)["who"] == "actor:1"


def test_a_failure_that_the_program_went_on_after_is_not_blamed(run):
    run.told(run.raises("actor:0", 0.0, ValueError("caught")), at=0.1)
    assert run.card(SystemError("the driver itself"), at=0.2)["who"] == "driver"


def test_a_death_that_the_program_went_on_after_is_not_blamed(run):
    run.told(run.dies("env:0", at=0.0), at=0.1)
    bad = run.told(run.raises("actor:0", 20.0, ValueError("a mistake")), at=20.1)
    assert run.card(bad, at=20.2)["who"] == "actor:0"


def test_a_death_that_was_recovered_from_is_not_blamed(run):
    run.told(run.dies("env:0", at=0.0), at=0.1)
    run.reporter.dealt_with(run.begin + 1.0)
    lost = run.told(run.raises("actor:0", 2.0, ConnectionResetError(CLOSED)), at=2.1)
    assert run.card(lost, at=2.2)["who"] == "actor:0"


def test_the_second_death_under_a_name_is_told_apart_from_the_first(run):
    run.told(run.dies("env:0", at=0.0, pid=7), at=0.1)
    run.dies("env:0", at=29.0, pid=8)
    lost = run.told(run.raises("actor:0", 30.0, ConnectionResetError(CLOSED)), at=30.1)
    card = run.card(lost, at=30.2)
    assert card["who"] == "env:0" and "pid 8" in card["where"]


def test_an_exception_that_is_here_before_the_registry_knows_is_the_workers(run):
    error = run.told(run.raises("actor:1", 0.0, KeyError("x"), heard=False), at=0.1)
    card = run.card(error, at=0.2)
    assert (card["who"], card["doing"]) == ("actor:1", "running train()")


def test_an_exception_that_the_driver_wraps_is_still_the_workers(run):
    error = run.told(run.raises("actor:1", 0.0, KeyError("x")), at=0.1)
    wrapped = RuntimeError("step 3 failed")
    wrapped.__cause__ = error
    assert run.card(wrapped, at=0.2)["who"] == "actor:1"


def test_a_peers_word_does_not_replace_the_facts_of_a_death(run):
    run.dies("actor:1", at=0.0)
    seen = run.told(WorkerDied("actor:1", cause="the peer closed the connection"), at=0.1)
    card = run.card(seen, at=0.2)
    assert "SIGKILL" in card["what"] and card["cause"] == "found out"


def test_a_mistake_is_not_blamed_on_a_process_that_dies_of_it(run):
    error = run.told(run.raises("actor:0", 0.0, ValueError("a mistake")), at=0.1)
    run.told(run.dies("actor:1", at=1.0), at=1.1)
    card = run.card(error, at=1.5)
    assert (card["who"], card["followers"]) == ("actor:0", ["actor:1"])


def test_who_lost_a_connection_is_not_blamed_for_a_mistake_of_another(run):
    run.raises("actor:0", 0.0, ConnectionResetError("Connection reset by peer"))
    error = run.told(run.raises("actor:1", 0.1, ValueError("a mistake")), at=0.2)
    assert run.card(error, at=0.3)["who"] == "actor:1"


def test_a_lost_connection_that_nothing_explains_is_told_as_it_is(run):
    lost = run.told(run.raises("actor:0", 0.0, ConnectionResetError(CLOSED)), at=0.1)
    card = run.card(lost, at=0.2)
    assert card["who"] == "actor:0" and "Connection closed by peer" in card["what"]


def test_a_wait_in_vain_is_explained_by_what_is_told_later(run):
    late = run.told(WaitTimeout("actor.train()", seconds=4.0, holders=["actor:0 (pid 1)"]), at=4.0)
    run.told(run.raises("actor:1", 0.0, ValueError("a mistake")), at=5.0)
    assert run.card(late, at=5.5)["who"] == "actor:1"


def test_a_peer_that_missed_somebody_is_not_blamed_itself(run):
    """The registry never hears of the death, and yet the card is about the one who has gone."""
    missed = WorkerDied("actor:1", cause="the peer closed the connection")
    error = run.told(run.raises("actor:0", 0.0, missed), at=0.1)
    assert run.card(error, at=0.2)["who"] == "actor:1"


def test_a_driver_that_fails_because_a_worker_lost_a_connection_blames_the_worker(run):
    run.raises("actor:0", 0.0, ConnectionResetError(CLOSED))
    assert run.card(SystemError("no answer"), at=1.0)["who"] == "actor:0"


@pytest.mark.parametrize("noticed", [-0.1, 0.1], ids=["at once", "late"])
@pytest.mark.parametrize("error", [WorkerDied("keeper:0"), KeeperLost("its keeper ended")])
def test_a_death_comes_before_what_others_say_of_it(run, error, noticed):
    told = run.told(run.raises("env:0", 0.0, error), at=0.05)
    run.dies("keeper:0", at=noticed)
    card = run.card(told, at=0.5)
    assert (card["who"], card["what"]) == ("keeper:0", "the process was killed by SIGKILL")


def test_an_exception_comes_before_a_death_that_it_leads_to(run):
    error = run.told(run.raises("env:0", 0.0, ValueError("a bad action")), at=0.1)
    run.dies("rollout:0", at=1.0)
    card = run.card(error, at=2.0)
    assert (card["who"], card["what"]) == ("env:0", "ValueError: a bad action")
    assert card["followers"] == ["rollout:0"]
