"""Point to point and broadcast between real workers."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rlinf.scheduler import FlexiblePlacementStrategy, wait_all
from tests.unit_tests.scheduler.comm_workers import Talker


def launch(cluster, count: int, name: str = "talk"):
    strategy = FlexiblePlacementStrategy([[i] for i in range(count)])
    return Talker.create_group().launch(cluster, strategy, name=name)


def test_nests_of_all_kinds_arrive_equal(cluster):
    assert launch(cluster, 4).exchange("talk").wait() == [True] * 4


@pytest.mark.parametrize("how", ["sync", "async", "mixed"])
@pytest.mark.parametrize("size", [10, 50_000])
def test_order_is_kept_per_pair(cluster, how, size):
    group = launch(cluster, 2)
    sent = group.execute_on(0).send_many("talk", 1, 60, size, how)
    assert group.execute_on(1).recv_many("talk", 0, 60, how).wait() == [True]
    sent.wait()


def test_order_is_kept_when_the_window_is_full(cluster):
    group = launch(cluster, 2)
    sent = group.execute_on(0).send_many("talk", 1, 900, 1 << 18, "async")
    assert group.execute_on(1).slow_recv("talk", 0, 900).wait() == [list(range(900))]
    sent.wait()


def test_a_message_larger_than_the_window_follows_a_small_one(cluster):
    group = launch(cluster, 2)
    sent = group.execute_on(0).send_small_then_huge("talk", 1, 300)
    assert group.execute_on(1).recv_two("talk", 0).wait(timeout=60) == [300 << 18]
    sent.wait(timeout=10)


def test_a_cancelled_receive_takes_nothing(cluster):
    group = launch(cluster, 2)
    assert group.execute_on(1).cancelled_recv("talk", 0).wait() == ["CallCancelled"]
    sent = group.execute_on(0).send_many("talk", 1, 3, 10, "sync")
    assert group.execute_on(1).recv_many("talk", 0, 3, "sync").wait() == [True]
    sent.wait()


def test_a_sent_tensor_may_be_changed_afterwards(cluster):
    group = launch(cluster, 2)
    group.execute_on(0).mutate_after_send("talk").wait()
    assert group.execute_on(1).sum_received("talk").wait() == [200_000.0]


def test_in_place(cluster):
    group = launch(cluster, 2)
    assert group.in_place("talk").wait() == [45.0, 45.0]
    message = group.in_place_mismatch("talk").wait()[1]
    assert "(9,)" in message and "(10,)" in message and "equal shapes" in message


def test_threads_and_piggyback(cluster):
    group = launch(cluster, 2)
    assert group.threads("talk", 100).wait() == [True, True]
    assert group.piggyback("talk").wait()[1] == ("object", {"key": 1})


def test_broadcast_over_groups(cluster):
    a, b = launch(cluster, 2, "a"), launch(cluster, 3, "b")
    groups = [("a", [0, 1]), ("b", [0, 1, 2])]
    for size in (5, 300_000):
        for src in (None, ("b", 1)):
            results = wait_all(a.spread(groups, src, size), b.spread(groups, src, size))
            assert results == [[True] * 2, [True] * 3]


def test_broadcast_mistakes(cluster):
    group = launch(cluster, 2)
    with pytest.raises(ValueError, match="not a member"):
        group.execute_on(0).spread([("other", [0])], ("other", 0), 1).wait()
    with pytest.raises(ValueError, match="named twice"):
        group.execute_on(0).spread([("talk", [0, 0])], None, 1).wait()


# -- faults ---------------------------------------------------------------------------------


def test_a_dead_sender_fails_the_receiver_by_name(cluster):
    group = launch(cluster, 2)
    pid = group.pid().wait()[1]
    waiting = group.execute_on(0).recv_or_error("talk", 1)
    time.sleep(0.3)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    (message,) = waiting.wait(timeout=10)
    assert time.monotonic() - begin < 5
    assert message.startswith("WorkerDied: worker talk:1") and "SIGKILL" in message


def test_what_a_dead_sender_had_sent_is_received_or_reported_in_order(cluster):
    group = launch(cluster, 2)
    assert group.exchange("talk").wait() == [True, True]
    group.execute_on(1).send_then_die("talk", 0)
    time.sleep(1)
    (large,) = group.execute_on(0).recv_or_error("talk", 1).wait()
    assert large.startswith("got tensor") or "ended before its message could be read" in large
    assert group.execute_on(0).recv_or_error("talk", 1).wait() == ["got last words"]
    (message,) = group.execute_on(0).recv_or_error("talk", 1).wait(timeout=10)
    assert message.startswith("WorkerDied: worker talk:1")


def test_a_dead_receiver_fails_the_sender(cluster):
    group = launch(cluster, 2)
    pid = group.pid().wait()[1]
    sending = group.execute_on(0).send_or_error("talk", 1, 100_000)
    time.sleep(0.5)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    (message,) = sending.wait(timeout=10)
    assert time.monotonic() - begin < 5
    assert message.startswith("WorkerDied: worker talk:1")


def test_a_receiver_that_does_not_keep_up_holds_the_sender_back(cluster):
    group = launch(cluster, 2)
    sending = group.execute_on(0).send_many("talk", 1, 6000, 1, "sync")
    time.sleep(3)
    assert not sending.done(), "more messages on the way than the window allows"
    assert group.execute_on(1).recv_many("talk", 0, 6000, "sync").wait() == [True]
    sending.wait()


def test_a_deadline_names_the_peer(cluster):
    group = launch(cluster, 2)
    (message,) = group.execute_on(0).recv_or_error("talk", 1, 0.2).wait()
    assert message == "WaitTimeout: talk:0 waited 0.2 s for a message from talk:1"
    (message,) = group.execute_on(0).recv_or_error("nobody", 0, 0.2).wait()
    assert "a message from nobody:0" in message


@pytest.mark.timeout(180)
def test_memory_stays_flat_over_many_large_transfers(cluster):
    """Resident memory counts shared pages, too; nothing may be left over from 10,000 transfers."""
    group = launch(cluster, 2)

    def resident() -> list[int]:
        """The least of three looks: how many blocks are in use at once is a matter of timing."""
        looks = [group.many_large("talk", 20, 32).wait() for _ in range(3)]
        return [min(of_rank) for of_rank in zip(*looks, strict=True)]

    group.many_large("talk", 1_000, 1).wait()
    before = resident()
    group.many_large("talk", 10_000, 1).wait()
    for earlier, later in zip(before, resident(), strict=True):
        assert later - earlier < 64 << 20
