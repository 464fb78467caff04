"""A rank that fails is told of although the others go on, and the right one is blamed."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from rlinf.scheduler import (
    ConnectionBroken,
    FlexiblePlacementStrategy,
    Worker,
    WorkerDied,
    wait_all,
    wait_beside,
)
from rlinf.scheduler.worker import handle as module
from rlinf.scheduler.worker.remote_error import pack
from tests.unit_tests.scheduler.waits import PROMPTLY

CLOSED = "Connection closed by peer"
LONG = 3600.0


class Fallible(Worker):
    """Fails on one rank while the others go on."""

    def fail_on_rank(self, rank: int, size: int) -> None:
        if self._rank == rank:
            raise ValueError("x" * size)
        time.sleep(LONG)

    def lose_connection(self, died: int | None, after: float) -> None:
        """Rank 0 loses its connection; another rank dies, and that is seen only later."""
        if self._rank == 0:
            raise ConnectionResetError(CLOSED)
        if self._rank == died:
            time.sleep(after)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LONG)

    def reset_or_err(self) -> None:
        """Rank 0 loses its connection because rank 1 has made a mistake."""
        if self._rank == 0:
            raise ConnectionResetError("Connection reset by peer")
        time.sleep(0.2)
        raise ValueError("a mistake")

    def miss(self, peer: str) -> None:
        """Has noticed that a peer has gone, and nothing else."""
        raise WorkerDied(peer, cause="the peer closed the connection")

    def pid(self) -> int:
        return os.getpid()


def start(cluster, name: str, count: int = 2):
    strategy = FlexiblePlacementStrategy([[i] for i in range(count)])
    return Fallible.create_group().launch(cluster, strategy, name=name)


WAITS = {
    "wait": lambda call: call.wait(),
    "async_wait": lambda call: asyncio.run(call.async_wait()),
    "wait_all": wait_all,
    "wait_beside": lambda call: wait_beside(call, []),
}


@pytest.mark.parametrize("way", WAITS)
def test_a_failed_rank_is_told_although_another_hangs(cluster, way):
    """However long its message is: Ray keeps short ones and long ones in different places."""
    group = start(cluster, "hanging")
    for size in (10, 1 << 20):
        call = group.fail_on_rank(1, size)
        begin = time.monotonic()
        with pytest.raises(ValueError, match="xxxx"):
            WAITS[way](call)
        assert time.monotonic() - begin < 3 * PROMPTLY
        call.cancel()
        assert call.ended(timeout=PROMPTLY)


def test_a_call_is_told_of_although_one_beside_it_goes_on(cluster):
    group, service = start(cluster, "beside"), start(cluster, "service")
    serving = service.fail_on_rank(5, 0)
    with pytest.raises(ValueError, match="xxxx"):
        wait_beside(group.fail_on_rank(0, 10), [serving], timeout=LONG)
    assert not serving.done()
    with pytest.raises(ValueError, match="xxxx"):
        wait_beside(serving, [group.execute_on(0).fail_on_rank(0, 10)], timeout=LONG)


def test_a_lost_connection_waits_for_the_death_that_explains_it(cluster):
    group = start(cluster, "lost")
    pid = group.pid().wait()[1]
    with pytest.raises(WorkerDied) as caught:
        group.lose_connection(1, after=3.0).wait()
    died = caught.value
    assert (died.worker, died.pid, died.signal) == ("lost:1", pid, "SIGKILL")


def test_a_lost_connection_of_another_call_is_explained_as_well(cluster):
    """The rank that dies is not in the call, but in its group."""
    group = start(cluster, "elsewhere")
    dying = group.execute_on(1).lose_connection(1, after=3.0)
    with pytest.raises(WorkerDied, match="elsewhere:1"):
        group.execute_on(0).lose_connection(1, after=0.0).wait()
    with pytest.raises(WorkerDied, match="elsewhere:1"):
        dying.wait()


def test_a_lost_connection_that_nothing_explains_is_raised_as_it_is(cluster, monkeypatch):
    monkeypatch.setattr(module, "_EXPLAINED_SECONDS", 0.5)
    group = start(cluster, "unexplained")
    with pytest.raises(ConnectionResetError, match="Connection closed by peer"):
        group.lose_connection(None, after=0.0).wait()


def test_who_lost_a_connection_is_not_raised_before_who_made_a_mistake(cluster):
    group = start(cluster, "mistaken")
    with pytest.raises(ValueError, match="a mistake"):
        group.reset_or_err().wait()


def test_the_facts_of_a_death_are_told_although_a_peer_only_misses_it(cluster):
    group = start(cluster, "missed")
    pid = group.pid().wait()[1]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied) as caught:
        group.execute_on(0).miss("missed:1").wait()
    died = caught.value
    assert (died.worker, died.pid, died.signal) == ("missed:1", pid, "SIGKILL")
    assert "in miss" in str(died.__cause__)


def test_an_exception_brings_its_own_report(cluster):
    group = start(cluster, "reporting", 1)
    with pytest.raises(ValueError) as caught:
        group.fail_on_rank(0, 10).wait()
    report = caught.value.__cause__.raised
    assert (report.name, report.method, report.type) == (
        "reporting:0",
        "fail_on_rank",
        "ValueError",
    )


def test_a_broken_connection_between_living_processes_is_no_echo():
    first = pack(ConnectionResetError("Connection reset by peer"), "a:0", "step")
    broken = ConnectionBroken("a:0", peer="b:0", reason="cut", confirmed=True)
    assert min([first, pack(broken, "a:1", "step")], key=module._blame).unpack().confirmed
