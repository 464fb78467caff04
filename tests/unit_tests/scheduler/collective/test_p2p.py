"""Point to point and broadcast between real workers."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rlinf.scheduler import wait_all
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


def test_nests_of_all_kinds_arrive_equal(four):
    assert four.exchange("four").wait() == [True] * 4


@pytest.mark.parametrize("how", ["sync", "async", "mixed"])
@pytest.mark.parametrize("size", [10, 50_000])
def test_order_is_kept_per_pair(pair, how, size):
    sent = pair.execute_on(0).send_many("pair", 1, 60, size, how)
    assert pair.execute_on(1).recv_many("pair", 0, 60, how).wait() == [True]
    sent.wait()


def test_order_is_kept_when_the_window_is_full(pair):
    sent = pair.execute_on(0).send_many("pair", 1, 900, 1 << 18, "async")
    assert pair.execute_on(1).slow_recv("pair", 0, 900).wait() == [list(range(900))]
    sent.wait()


def test_a_message_larger_than_the_window_follows_a_small_one(pair):
    sent = pair.execute_on(0).send_small_then_huge("pair", 1, 300)
    assert pair.execute_on(1).recv_two("pair", 0).wait(timeout=60) == [300 << 18]
    sent.wait(timeout=PROMPTLY)


def test_a_cancelled_receive_takes_nothing(pair):
    assert pair.execute_on(1).cancelled_recv("pair", 0).wait() == ["CallCancelled"]
    sent = pair.execute_on(0).send_many("pair", 1, 3, 10, "sync")
    assert pair.execute_on(1).recv_many("pair", 0, 3, "sync").wait() == [True]
    sent.wait()


def test_a_sent_tensor_may_be_changed_afterwards(pair):
    pair.execute_on(0).mutate_after_send("pair").wait()
    assert pair.execute_on(1).sum_received("pair").wait() == [200_000.0]


def test_in_place(pair):
    assert pair.in_place("pair").wait() == [45.0, 45.0]
    message = pair.in_place_mismatch("pair").wait()[1]
    assert "(9,)" in message and "(10,)" in message and "equal shapes" in message


def test_threads_and_piggyback(pair):
    assert pair.threads("pair", 100).wait() == [True, True]
    assert pair.piggyback("pair").wait()[1] == ("object", {"key": 1})


def test_broadcast_over_groups(pair, three):
    groups = [("pair", [0, 1]), ("three", [0, 1, 2])]
    for size in (5, 300_000):
        for src in (None, ("three", 1)):
            results = wait_all(pair.spread(groups, src, size), three.spread(groups, src, size))
            assert results == [[True] * 2, [True] * 3]


def test_what_is_held_is_waited_for(three):
    groups = [("three", [0, 1, 2])]
    took = three.spread_and_hold(groups, 0.3).wait()
    assert min(took) >= 0.3, "the source may not go on before it is given back"


def test_broadcast_mistakes(pair):
    with pytest.raises(ValueError, match="not a member"):
        pair.execute_on(0).spread([("other", [0])], ("other", 0), 1).wait()
    with pytest.raises(ValueError, match="named twice"):
        pair.execute_on(0).spread([("pair", [0, 0])], None, 1).wait()


# -- faults ---------------------------------------------------------------------------------


def test_a_dead_sender_fails_the_receiver_by_name(fresh):
    group = fresh(2)
    pid = group.pid().wait()[1]
    waiting = group.execute_on(0).recv_or_error("talk", 1)
    time.sleep(0.3)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    (message,) = waiting.wait(timeout=3 * PROMPTLY)
    assert time.monotonic() - begin < PROMPTLY
    assert message.startswith("WorkerDied: worker talk:1") and "SIGKILL" in message


def test_what_a_dead_sender_had_sent_is_received_or_reported_in_order(shared_cluster, fresh):
    group = fresh(2)
    assert group.exchange("talk").wait() == [True, True]
    deaths = len(shared_cluster._server.deaths())
    group.execute_on(1).send_then_die("talk", 0)
    wait_until(lambda: len(shared_cluster._server.deaths()) > deaths)
    (large,) = group.execute_on(0).recv_or_error("talk", 1).wait()
    assert large.startswith("got tensor") or "ended before its message could be read" in large
    assert group.execute_on(0).recv_or_error("talk", 1).wait() == ["got last words"]
    (message,) = group.execute_on(0).recv_or_error("talk", 1).wait(timeout=3 * PROMPTLY)
    assert message.startswith("WorkerDied: worker talk:1")


def test_a_dead_receiver_fails_the_sender(fresh):
    group = fresh(2)
    pid = group.pid().wait()[1]
    sending = group.execute_on(0).send_or_error("talk", 1, 100_000)
    time.sleep(0.5)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    (message,) = sending.wait(timeout=3 * PROMPTLY)
    assert time.monotonic() - begin < PROMPTLY
    assert message.startswith("WorkerDied: worker talk:1")


def test_a_receiver_that_does_not_keep_up_holds_the_sender_back(pair):
    sending = pair.execute_on(0).send_many("pair", 1, 6000, 1, "sync")
    time.sleep(3)
    assert not sending.done(), "more messages on the way than the window allows"
    assert pair.execute_on(1).recv_many("pair", 0, 6000, "sync").wait() == [True]
    sending.wait()


def test_a_deadline_names_the_peer(pair):
    (message,) = pair.execute_on(0).recv_or_error("pair", 1, 0.2).wait()
    assert message == "WaitTimeout: pair:0 waited 0.2 s for a message from pair:1"
    (message,) = pair.execute_on(0).recv_or_error("nobody", 0, 0.2).wait()
    assert "a message from nobody:0" in message


@pytest.mark.timeout(180)
def test_memory_stays_flat_over_many_large_transfers(fresh):
    """Resident memory counts shared pages, too; nothing may be left over from 10,000 transfers.

    What is ready for use again grows to what was once in use at the same time, which is a matter of
    timing and has its limit. What leaks grows every time.
    """
    group = fresh(2)
    seen = []
    for _ in range(5):
        group.many_large("talk", 10_000 if seen else 1_000, 1).wait()
        looks = [group.many_large("talk", 20, 32).wait() for _ in range(3)]
        seen.append([min(of_rank) for of_rank in zip(*looks, strict=True)])
        if len(seen) > 1 and all(b - a < 64 << 20 for a, b in zip(*seen[-2:], strict=True)):
            return
    raise AssertionError(f"resident memory grew again and again: {seen} bytes")
