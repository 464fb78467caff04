"""Going on after a death: calls are ended, the dead come back, nothing of the past arrives."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rlinf.scheduler import (
    CallCancelled,
    FlexiblePlacementStrategy,
    Worker,
    WorkerDied,
    begin_exchange,
    call_off,
    new_deaths,
    wait_all,
    wait_restarted,
)
from rlinf.scheduler.deadlines import Deadline
from rlinf.scheduler.worker.recovery import _info_of
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


class Player(Worker):
    """Exchanges lists with another group."""

    @classmethod
    def restart_policy(cls) -> str | dict[str, int]:
        return {"on_failure": 1}

    def pid(self) -> int:
        return os.getpid()

    def give(self, to: str, values: list[int], key: str = "") -> None:
        self.send_to(to, None, values, route_key=key)

    def take(self, source: str, key: str = "") -> list[int]:
        return self.recv_from(source, None, route_key=key)

    def hear(self, source: str) -> str:
        return self.recv(source, 0)

    def tell(self, to: str, text: str) -> None:
        self.send(text, to, 0)

    def work(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def groups(cluster):
    strategy = FlexiblePlacementStrategy([[0], [1]])
    return [Player.create_group().launch(cluster, strategy, name=name) for name in ("a", "b")]


def test_a_joint_effort_is_played_again_after_a_death(cluster, groups):
    a, b = groups
    a.give("b", [1, 1]).wait()
    calls = a.take("b"), b.take("a", "never sent")
    victim = a.worker_info_list[1].pid
    os.kill(victim, signal.SIGSEGV)
    with pytest.raises(WorkerDied, match="a:1"):
        wait_all(*calls)
    died = call_off(*calls)
    assert [(d.worker, d.pid, d.signal) for d in died] == [("a:1", victim, "SIGSEGV")]
    assert all(call.done() for call in calls), "nobody waits any more"
    assert [d.worker for d in new_deaths(a)] == ["a:1"]

    assert wait_restarted(a) == [1]
    assert (new_deaths(a), wait_restarted(b)) == ([], [])
    again = a.worker_info_list[1]
    assert (again.incarnation, again.pid) == (1, a.pid().wait()[1]) and again.pid != victim
    # The new process has a black box of its own; what the old one left can still be read.
    late = cluster._supervisor.explain_death("a:1")
    assert (late.pid, late.signal) == (victim, "SIGSEGV")

    begin_exchange(a, b)
    sent = a.give("b", [2, 3])
    assert b.take("a").wait(timeout=PROMPTLY) == [[2, 3], [2, 3]], "and not the unread [1, 1]"
    sent.wait()


def test_a_receiver_waits_for_a_peer_that_is_back(groups):
    """It has heard of the death, and the new process has not sent anything yet."""
    a, b = groups
    os.kill(a.worker_info_list[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="a:0"):
        b.take("a").wait(timeout=PROMPTLY)
    wait_restarted(a)
    taken = b.execute_on(0).take("a")
    assert not taken.ended(timeout=0.5)
    a.execute_on(0).give("b", [4, 5]).wait()
    assert taken.wait(timeout=PROMPTLY) == [[4, 5]]


def test_calls_end_without_a_death_and_by_force_if_need_be(groups):
    a, b = groups
    waiting, busy = a.take("b"), b.work(600.0)
    assert call_off(waiting, busy, grace=5.0) == []
    for call in (waiting, busy):
        with pytest.raises(CallCancelled):
            call.wait()
    with pytest.raises(CallCancelled):
        a.take("b").wait(timeout=PROMPTLY)
    begin_exchange(a, b)
    sent = a.give("b", [6, 7])
    assert b.take("a").wait(timeout=PROMPTLY) == [[6, 7]] * 2
    sent.wait()


def test_a_cancelled_receive_takes_nothing_of_the_next_one(groups):
    a, b = (group.execute_on(0) for group in groups)
    cancelled = b.hear("a")
    assert not cancelled.ended(timeout=0.5)
    cancelled.cancel()
    with pytest.raises(CallCancelled):
        cancelled.wait(timeout=PROMPTLY)
    a.tell("b", "hello").wait()
    assert b.hear("a").wait(timeout=PROMPTLY) == ["hello"]


def test_a_group_that_takes_over_the_name_of_a_dead_one_has_not_lived_before(cluster):
    one = FlexiblePlacementStrategy([[0]])
    group = Player.create_group().launch(cluster, one, name="again")
    os.kill(group.worker_info_list[0].pid, signal.SIGKILL)
    assert wait_restarted(group) == [0]
    os.kill(group.worker_info_list[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        group.pid().wait(timeout=PROMPTLY)
    group._close()
    new = Player.create_group().launch(cluster, one, name="again")
    assert new.worker_info_list[0].incarnation == 0


def test_a_second_crash_during_the_recovery_is_not_taken_for_dealt_with(cluster):
    """It comes after the ranks were waited for, and the third process answers in its place."""
    slots = FlexiblePlacementStrategy([[0], [1]])
    group = Player.create_group().launch(cluster, slots, name="a", restart={"on_failure": 2})
    os.kill(group.worker_info_list[0].pid, signal.SIGKILL)
    assert wait_restarted(group) == [0]
    os.kill(group.worker_info_list[0].pid, signal.SIGKILL)
    wait_until(lambda: _info_of(group.launched, 0, Deadline(60.0)).incarnation == 2)
    begin_exchange(group)
    second = cluster.deaths()[-1]
    assert (second.name, second.order) == ("a:0", 1)
    reporter = cluster._supervisor.reporter
    assert cluster.deaths()[0].time < reporter.recovered_at <= second.time
    assert [d.pid for d in new_deaths(group)] == [second.info.pid]
    assert wait_restarted(group) == [0] and new_deaths(group) == []
    begin_exchange(group)
    assert reporter.recovered_at > second.time
