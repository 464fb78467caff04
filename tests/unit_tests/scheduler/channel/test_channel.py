"""Channels between real processes."""

from __future__ import annotations

import os
import pickle
import signal
import time

import pytest

from rlinf.scheduler import (
    Channel,
    ChannelClosed,
    ChannelEmpty,
    ChannelError,
    ChannelFull,
    ItemLost,
    Scatter,
    WaitTimeout,
    WorkerDied,
    wait_all,
)
from tests.long_tests import ALL_TESTS
from tests.unit_tests.scheduler.comm_workers import AsyncTalker, equal, make_nest
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


def test_the_driver_can_use_a_channel(shared_cluster):
    channel = Channel.create("c", maxsize=2)
    channel.put({"a": 1}, weight=3)
    channel.put(make_nest(1))
    assert (channel.qsize(), channel.empty(), channel.full()) == (2, False, True)
    with pytest.raises(ChannelFull, match="'c' is full"):
        channel.put_nowait(3)
    peeked = channel.peek_all()
    assert peeked[0] == {"a": 1} and equal(peeked[1], make_nest(1))
    assert str(channel).startswith("<Channel c: 2 items: [{'a': 1}, ")
    assert channel.get() == {"a": 1}
    assert equal(channel.get(), make_nest(1))
    with pytest.raises(ChannelEmpty):
        channel.get_nowait()
    channel.put(1, key=("any", "key"))
    assert channel.keys() == [("any", "key")]
    assert channel.get(key=("any", "key")) == 1
    begin = time.monotonic()
    with pytest.raises(WaitTimeout, match="an item of channel 'c'"):
        channel.get(timeout=0.2)
    assert time.monotonic() - begin < PROMPTLY
    channel.put_batch([1, 2], weights=[1, 1])
    with pytest.raises(WaitTimeout, match="room in channel 'c'"):
        channel.put(3, timeout=0.2)
    assert channel.get_batch(2) == [1, 2]
    assert channel.stats()["puts"] == 5


def test_items_pass_between_workers_small_and_large(pair):
    for size in (0, 10, 100_000):
        channel = Channel.create(f"c{size}", maxsize=3)
        put = pair.execute_on(0).put_range(channel, 0, 30, size)
        assert pair.execute_on(1).take(channel, 30).wait() == [list(range(30))]
        put.wait()


def test_connect_create_and_pickle(fresh):
    group = fresh(1)
    waiting = group.connected("later")
    channel = Channel.create("later")
    pickle.loads(pickle.dumps(channel)).put(42)
    assert waiting.wait() == [42]
    assert group.made("by worker").wait() == [True]
    with pytest.raises(ValueError, match="exists with other settings"):
        Channel.create("later", maxsize=5)
    with pytest.raises(ValueError, match="maxsize=-1"):
        Channel.create("bad", maxsize=-1)


def test_many_producers_and_consumers_account_for_each_item_once(three, fresh):
    producers, consumers = three, fresh(3, "take")
    channel = Channel.create("shared", maxsize=500)
    each = 33_334 if ALL_TESTS else 2_000
    taking = consumers.take_until_closed(channel)
    producers.put_range(channel, Scatter([0, each, 2 * each]), each).wait()
    channel.close()
    taken = taking.wait()
    assert sorted(i for part in taken for i in part) == list(range(3 * each))
    for part in taken:
        for start in (0, each, 2 * each):
            mine = [i for i in part if start <= i < start + each]
            assert mine == sorted(mine), "the order of a producer is kept"


def test_batches_are_atomic_under_concurrent_readers(three):
    channel = Channel.create("batches")
    taking = three.take_batches(channel, 4)
    for i in range(400):
        channel.put(i, weight=1)
    channel.close()
    batches = [batch for part in taking.wait() for batch in part]
    assert sorted(i for batch in batches for i in batch) == list(range(400))
    assert all(len(batch) == 4 for batch in batches)
    assert all(batch == list(range(batch[0], batch[0] + 4)) for batch in batches)


def test_close_ends_readers(pair):
    channel = Channel.create("closing")
    taking = pair.take_until_closed(channel)
    pair.execute_on(0)
    for i in range(5):
        channel.put(i)
    channel.close()
    assert sorted(i for part in taking.wait() for i in part) == list(range(5))
    with pytest.raises(ChannelClosed):
        channel.get()
    assert list(channel) == []


def test_a_closed_channel_can_be_created_again(pair, shared_cluster):
    old = Channel.create("again", maxsize=3)
    old.put("left over")
    waiting = pair.execute_on(0).use_channel(old, "get", "another key")
    wait_until(lambda: "another key" in old.keys())
    old.close()
    assert waiting.wait(timeout=PROMPTLY)[0].startswith("ChannelClosed")
    assert Channel.connect("again").get(timeout=PROMPTLY) == "left over", "it can still be read"
    new = Channel.create("again", maxsize=5)
    new.put("fresh")
    for use in (old.get, lambda: old.put(1), pickle.loads(pickle.dumps(old)).get):
        with pytest.raises(ChannelClosed, match="'again' is closed"):
            use()
    (message,) = pair.execute_on(1).use_channel(old, "get").wait()
    assert message.startswith("ChannelClosed")
    old.close()
    assert Channel.create("again", maxsize=5).qsize() == 1, "the same settings, the same channel"
    with pytest.raises(ValueError, match="exists with other settings"):
        Channel.create("again")
    assert pair.execute_on(0).use_channel(Channel.connect("again"), "get").wait() == ["ok fresh"]
    assert shared_cluster.channel_stats()["again"]["puts"] == 1, "counted since it was made"


def test_the_old_readers_finish_while_the_new_channel_is_used(shared_cluster):
    old = Channel.create("twice")
    old.put_batch(range(3))
    old.close()
    new = Channel.create("twice")
    new.put_batch("abc")
    assert [old.get(), new.get(), old.get(), new.get(), old.get()] == [0, "a", 1, "b", 2]
    for _ in range(3):
        new.close()
        new = Channel.create("twice")
    new.put("last")
    assert new.get() == "last"
    with pytest.raises(ChannelClosed):
        old.get()


def test_many_may_create_a_closed_channel_again_at_once(three):
    Channel.create("race").close()
    assert three.made_again("race").wait() == [True] * 3
    assert Channel.connect("race").stats()["puts"] == 3, "all of them have one and the same"


def test_a_refused_item_of_an_unbounded_channel_is_reported(shared_cluster):
    channel = Channel.create("refusing")
    channel.put(1)
    channel.close()
    channel.put(2)
    with pytest.raises(ChannelClosed):
        # The refusal comes before the answer to the first question, or sooner.
        channel.qsize()
        channel.qsize()


def test_coroutines(fresh):
    group = fresh(1, "async", AsyncTalker)
    source, target = Channel.create("source"), Channel.create("target", maxsize=2)
    relay = group.relay(source, target, 20)
    for i in range(20):
        source.put(i)
    assert sorted(target.get() for _ in range(20)) == list(range(20))
    relay.wait()
    assert group.give_up(source).wait() == ["cancelled"]
    source.put("kept")
    assert source.get(timeout=PROMPTLY) == "kept", "a cancelled get takes nothing"
    (message,) = group.timeout(source).wait()
    assert message.startswith("True") and "an item of channel 'source'" in message


def test_async_handles_and_cancel(shared_cluster):
    channel = Channel.create("handles")
    first, second = channel.get(async_op=True), channel.get(async_op=True)
    assert not first.done()
    first.cancel()
    channel.put("x")
    assert second.wait(timeout=PROMPTLY) == "x"
    assert channel.get(async_op=True).then(str.upper) is not None
    channel.put("y")
    wait_until(channel.empty)


def test_local_channel():
    channel = Channel.create("local", maxsize=1, local=True)
    assert channel.is_local
    channel.put("a")
    with pytest.raises(ChannelFull):
        channel.put_nowait("b")
    with pytest.raises(WaitTimeout):
        channel.put("b", timeout=0.05)
    waiting = channel.put("b", async_op=True)
    assert channel.get() == "a"
    waiting.wait(timeout=PROMPTLY)
    assert channel.get_batch(0) == ["b"]
    with pytest.raises(WaitTimeout):
        channel.get(timeout=0.05)
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.get()
    with pytest.raises(TypeError, match="local to its process"):
        pickle.dumps(channel)


# -- re-sharding ----------------------------------------------------------------------------


@pytest.mark.parametrize("through_channel", [False, True])
def test_shares_of_3_arrive_as_shares_of_4(three, four, through_channel):
    channel = Channel.create("shares") if through_channel else None
    _, shares = wait_all(three.share_out("four", channel, 24), four.share_in("three", channel, 24))
    assert [x for xs, _ in shares for x in xs] == list(range(24))
    assert [len(xs) for xs, _ in shares] == [6, 6, 6, 6]
    assert [n for _, names in shares for n in names] == [str(i) for i in range(24)]
    _, back = wait_all(four.share_out("three", channel, 24), three.share_in("four", channel, None))
    assert [len(xs) for xs, _ in back] == [8, 8, 8]
    with pytest.raises(ValueError, match=r"a batch of 21 cannot be shared equally by the 4"):
        three.share_out("four", channel, 21).wait()


# -- faults ---------------------------------------------------------------------------------


def test_a_consumer_that_dies_with_an_item_is_reported(fresh):
    earlier = fresh(2)
    earlier.use_channel(Channel.create("before"), "put", 1).wait()
    earlier._close()
    group = fresh(2)  # under the name of a group that has left
    channel = Channel.create("fragile")
    channel.put("precious")
    waiting = group.execute_on(1).use_channel(channel, "get", "other key")
    with pytest.raises(WorkerDied):
        group.execute_on(0).take_one_and_die(channel).wait()
    (message,) = waiting.wait(timeout=PROMPTLY)
    assert "talk:0 died with 1 item(s) of channel 'fragile'" in message
    with pytest.raises(ItemLost, match="redeliver=True"):
        channel.put("more", timeout=PROMPTLY)
        channel.get(timeout=PROMPTLY)


def test_what_a_killed_consumer_held_is_dropped(shared_cluster, fresh):
    group = fresh(1)
    channel = Channel.create("dropped")
    outbox, pool = channel._client().outbox, channel._client().endpoint.packer.pool
    wait_until(lambda: len(outbox) == 0 and pool.stats().blocks == 0)
    for _ in range(3):
        channel.put(bytes(1_000_000))
    with pytest.raises(WorkerDied):
        group.take_one_and_die(channel).wait()
    wait_until(lambda: len(outbox) == 0 and pool.stats().blocks == 0)
    with pytest.raises(ItemLost, match="talk:0 died with 1 item"):
        channel.get(timeout=PROMPTLY)
    channel.close()
    again = Channel.create("dropped")
    again.put(1)
    assert again.get(timeout=PROMPTLY) == 1, "a channel that was lost can be made anew"


def test_what_was_lent_to_a_killed_consumer_goes_to_others_in_order(fresh):
    group = fresh(2)
    channel = Channel.create("lent", maxsize=12)
    channel.put_batch(range(12))
    with pytest.raises(WorkerDied):
        group.execute_on(0).take_some_and_die(channel, 4).wait()
    assert channel.stats()["depth"] == 8
    taking = group.execute_on(1).take(channel, 12)
    channel.put_batch(range(12, 16))
    assert taking.wait(timeout=3 * PROMPTLY) == [list(range(4, 16))]


@pytest.mark.parametrize("size", [0, 100_000])
def test_redelivery(fresh, size):
    group = fresh(2)
    channel = Channel.create(f"safe{size}", redeliver=True)
    group.execute_on(1).put_range(channel, 0, 3, size).wait()
    with pytest.raises(WorkerDied):
        group.execute_on(0).take_one_and_die(channel).wait()
    assert group.execute_on(1).take(channel, 3).wait(timeout=3 * PROMPTLY) == [[0, 1, 2]]
    assert channel.stats()["redelivered"] == 1


def test_a_dead_producer_takes_only_its_large_items(fresh):
    group = fresh(2)
    channel = Channel.create("orphans")
    with pytest.raises(WorkerDied):
        group.execute_on(0).put_large_and_die(channel).wait()
    assert channel.get(timeout=PROMPTLY) == "small"
    with pytest.raises(ItemLost, match="lost with its producer talk:0"):
        channel.get(timeout=PROMPTLY)


@pytest.mark.timeout(300)
def test_a_fresh_key_per_request_does_not_grow_memory(shared_cluster, fresh):
    group = fresh(2)
    channel = Channel.create("replies")
    group.fresh_keys(channel, 500).wait()
    keeper = next(n for n in shared_cluster._server.state.workers if n.startswith("ChannelKeeper"))
    import psutil

    process = psutil.Process(shared_cluster._server.state.workers[keeper].pid)
    # Soon after its start a process loads what moving data needs; that is not a leak.
    looks = [0]

    def has_settled() -> bool:
        looks.append(process.memory_info().rss)
        time.sleep(1.5)
        return abs(looks[-1] - looks[-2]) < 1 << 18

    wait_until(has_settled, 3 * PROMPTLY)
    before = process.memory_info().rss
    grown = group.fresh_keys(channel, 5_000).wait()
    assert max(grown) < 8 << 20
    assert process.memory_info().rss - before < 8 << 20
    assert channel.keys() == []


def test_counters_can_be_read_from_the_driver(shared_cluster, fresh):
    from rlinf.scheduler.traffic import traffic_metrics

    group = fresh(2, "count")
    group.exchange("count").wait()
    channel = Channel.create("counted")
    channel.put(1)
    traffic, stats = shared_cluster.traffic(), shared_cluster.channel_stats()
    assert traffic["count:1"]["received"]["count:0"]["items"] == 1
    assert traffic["count:0"]["sent"]["count:1"]["bytes"] > 100_000
    metrics = traffic_metrics(traffic, stats)
    assert metrics["comm/count-count/items"] == 2
    assert metrics["comm/counted/depth"] == 1
    assert metrics["time/wait/count-count"] > 0


def test_a_dead_keeper_fails_everybody_at_once(shared_cluster, fresh):
    group = fresh(2)
    channel = Channel.create("kept")
    waiting = group.use_channel(channel, "get", Scatter(["a", "b"]))
    wait_until(lambda: sorted(channel.keys()) == ["a", "b"])
    keeper = next(n for n in shared_cluster._server.state.workers if n.startswith("ChannelKeeper"))
    begin = time.monotonic()
    os.kill(shared_cluster._server.state.workers[keeper].pid, signal.SIGKILL)
    for message in waiting.wait(timeout=3 * PROMPTLY):
        assert message.startswith("KeeperLost: channel 'kept' is gone") and keeper in message
    assert time.monotonic() - begin < PROMPTLY
    with pytest.raises((ChannelError, WorkerDied)):
        channel.put(1)
        channel.get(timeout=PROMPTLY)
