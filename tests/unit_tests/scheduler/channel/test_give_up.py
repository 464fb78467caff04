"""Items, and the word on them, when requests are given up and members stall or die."""

from __future__ import annotations

import asyncio
import gc

import pytest

from rlinf.scheduler import (
    Channel,
    ChannelClosed,
    ChannelError,
    ConnectionBroken,
    ItemLost,
    WaitTimeout,
    WorkerDied,
)
from rlinf.scheduler.channel import pending
from rlinf.scheduler.channel.client import INLINE_BYTES
from rlinf.scheduler.channel.spec import ChannelSpec
from rlinf.scheduler.collective.payload import Payload
from rlinf.scheduler.collective.work import gather
from rlinf.scheduler.errors import SchedulerError
from tests.unit_tests.scheduler.small_run import in_thread, stalled
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

LARGE = 5 * INLINE_BYTES


@pytest.fixture
def impatient(monkeypatch):
    """After its deadline a get waits no longer for word from the keeper."""
    monkeypatch.setattr(pending, "GET_GRACE", 0.05)


def time_out(channel, *args, **kwargs):
    with pytest.raises(WaitTimeout):
        channel.get(*args, timeout=0.05, **kwargs)


@pytest.mark.parametrize("size", [10, LARGE])
def test_an_item_that_is_granted_too_late_goes_back(small_run, impatient, size):
    keeper = small_run.keeper()
    producer, late, other = (small_run.join(name) for name in ("p:0", "late:0", "other:0"))
    small_run.channel(producer, "c").put(b"x" * size)
    assert small_run.channel(other, "c").qsize() == 1
    channel = small_run.channel(late, "c")
    with stalled(keeper):
        in_thread(time_out, channel).wait()
        # What a later request says of earlier ones must not count for the one that was given up.
        later = channel.get(key="another", async_op=True)
    assert small_run.channel(other, "c").get(timeout=PROMPTLY) == b"x" * size
    later.cancel()
    assert small_run.channel(other, "c").stats()["gets"] == 1


def test_items_that_go_back_are_in_their_places_and_what_was_lent_with_them_too(
    small_run, impatient
):
    keeper = small_run.keeper()
    producer, late, other = (small_run.join(name) for name in ("p:0", "late:0", "other:0"))
    channel, putting = small_run.channel(late, "c"), small_run.channel(producer, "c")
    putting.put_batch([0, 1])
    assert [channel.get(), channel.get()] == [0, 1], "it is known as a reader now"
    putting.put_batch(range(2, 8))
    assert putting.qsize() == 6
    with stalled(keeper):
        waits = [in_thread(time_out, channel) for _ in range(2)]
        [wait.wait() for wait in waits]
    other_side = small_run.channel(other, "c")
    assert [other_side.get(timeout=PROMPTLY) for _ in range(6)] == list(range(2, 8))


def test_a_lent_item_that_was_taken_for_nothing_is_in_its_place_again(small_run):
    small_run.keeper()
    consumer, other = small_run.join("c:0"), small_run.join("o:0")
    channel = small_run.channel(consumer, "c")
    channel.put_batch(range(6))
    assert [channel.get(), channel.get()] == [0, 1]
    together = gather([channel.get(async_op=True), channel.get(key="empty", async_op=True)])
    channel.close()
    with pytest.raises(ChannelClosed):
        in_thread(together.wait).wait()
    other_side = small_run.channel(other, "c")
    assert [other_side.get(timeout=PROMPTLY) for _ in range(4)] == [2, 3, 4, 5]
    assert other_side.stats()["gets"] == 6


def test_the_rest_of_a_batch_goes_back_if_one_item_is_lost_with_its_producer(small_run):
    small_run.keeper()
    dying, producer, consumer = (small_run.join(name) for name in ("d:0", "p:0", "c:0"))
    small_run.channel(producer, "c").put("small", weight=1)
    channel = small_run.channel(consumer, "c")
    small_run.channel(dying, "c").put(b"x" * LARGE, weight=1)
    wait_until(lambda: channel.qsize() == 2)
    with stalled(dying):
        batch = channel.get_batch(2, async_op=True)
        # The keeper has granted both, and the second one is never sent.
        wait_until(lambda: channel.qsize() == 0)
        small_run.kill(dying)
        with pytest.raises(ItemLost, match="lost with its producer d:0"):
            in_thread(batch.wait).wait()
    assert small_run.channel(producer, "c").get(timeout=PROMPTLY) == "small"


def test_a_coroutine_that_is_cancelled_when_its_item_comes_leaves_it(small_run):
    small_run.keeper()
    producer, consumer = small_run.join("p:0"), small_run.join("c:0")
    channel = small_run.channel(consumer, "c")

    async def cancelled_at_the_last_moment():
        work = channel.get(async_op=True)
        task = asyncio.ensure_future(work.async_wait())
        await asyncio.sleep(0)
        small_run.channel(producer, "c").put("kept")
        # The loop stands still meanwhile.
        wait_until(work.done)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled_at_the_last_moment())
    assert small_run.channel(producer, "c").get(timeout=PROMPTLY) == "kept"


def test_a_cancelled_handle_takes_nothing_although_the_keeper_is_slow(small_run):
    keeper = small_run.keeper()
    producer, consumer = small_run.join("p:0"), small_run.join("c:0")
    channel = small_run.channel(consumer, "c")
    channel.put("kept")
    assert channel.qsize() == 1
    with stalled(keeper):
        channel.get(async_op=True).cancel()
    assert small_run.channel(producer, "c").get(timeout=PROMPTLY) == "kept"


def test_a_keeper_that_dies_while_items_are_lent_is_reported(small_run, monkeypatch):
    keeper = small_run.keeper()
    consumer = small_run.join("c:0")
    channel = small_run.channel(consumer, "c")
    channel.put_batch(range(6))
    assert [channel.get(), channel.get()] == [0, 1]
    assert consumer.channels._ahead, "the rest is lent"
    connections = consumer.endpoint.connections
    reach, killed = connections.to, []

    def reach_a_dead_one(*args):
        if not killed:
            killed.append(keeper)
            small_run.kill(keeper)
            # Its end is told from here on, which must not need what the caller holds.
            wait_until(lambda: "keeper:0" not in connections._out)
        return reach(*args)

    monkeypatch.setattr(connections, "to", reach_a_dead_one)
    with pytest.raises((ChannelError, WorkerDied), match="keeper:0"):
        in_thread(lambda: [channel.get() for _ in range(6)]).wait()


def test_a_refusal_that_nobody_waited_for_is_raised_by_close(small_run):
    small_run.keeper()
    producer, other = small_run.join("p:0"), small_run.join("o:0")
    name = "it's mine"
    channel = small_run.channel(producer, name)
    small_run.channel(other, name).close()
    channel.put("lost")
    with pytest.raises(ChannelClosed, match="nothing can be put into it"):
        channel.close()
    channel.close()


def test_the_error_of_a_put_whose_handle_was_let_go_is_raised_by_the_next_request(small_run):
    small_run.keeper()
    producer, other = small_run.join("p:0"), small_run.join("o:0")
    channel = small_run.channel(producer, "c", maxsize=1)
    channel.put(1)
    handle = channel.put(2, async_op=True)
    small_run.channel(other, "c", maxsize=1).close()
    wait_until(handle.done)
    del handle
    gc.collect()
    with pytest.raises(ChannelClosed):
        channel.qsize()
    assert channel.qsize() == 1


def test_a_put_whose_channel_does_not_exist_is_reported(small_run):
    small_run.keeper()
    producer = small_run.join("p:0")
    channel = Channel(ChannelSpec("nowhere", keepers=("keeper:0",)))
    channel._bound = producer.channels
    channel.put(1)
    with pytest.raises(ChannelError, match="there is no channel 'nowhere'"):
        channel.get(timeout=PROMPTLY)


def test_a_large_item_that_cannot_be_put_is_not_kept(small_run):
    keeper = small_run.keeper()
    producer = small_run.join("p:0")
    channel = small_run.channel(producer, "c")
    small_run.kill(keeper)
    with pytest.raises((ChannelError, WorkerDied), match="keeper:0"):
        channel.put(b"x" * LARGE)
    assert len(producer.channels.outbox) == 0


def test_a_local_channel_loses_nothing_either():
    channel = Channel.create("local", local=True)
    works = [channel.get(async_op=True) for _ in range(2)]
    channel.put_batch([1, 2, 3])
    works[1].abandon()
    works[0].abandon()
    assert [channel.get() for _ in range(3)] == [1, 2, 3]
    late = channel._client().get(channel._spec, "default_queue", None, True, None)
    with channel._client()._lock:
        # Given up, and about to say so to the queue.
        giving_up = in_thread(late.abandon)
        wait_until(late.done)
        channel.put(4)
    giving_up.wait()
    assert channel.get(timeout=PROMPTLY) == 4


@pytest.mark.parametrize("operation", ["put", "get", "task_done"])
def test_a_keeper_that_dies_during_a_request_is_named(small_run, monkeypatch, operation):
    keeper, member = small_run.keeper(), small_run.join("m:0")
    channel = small_run.channel(member, "c")

    def send_when_it_dies(*args, **options):
        # The connection is seen to end before anybody has told of the death.
        small_run.kill(keeper)
        raise ConnectionBroken("m:0", peer="keeper:0", reason="writing failed")

    monkeypatch.setattr(member.endpoint, "answer_raw", send_when_it_dies)
    with pytest.raises(WorkerDied, match="keeper:0"):
        getattr(channel, operation)(*["item"] * (operation == "put"))


def test_an_item_that_could_not_be_opened_goes_back_as_lost():
    lost = Payload(None, None, [], 10, SchedulerError("a message could not be opened"))
    assert pending.copies(lost) == []


def test_a_lent_item_that_was_taken_for_nothing_may_outlive_its_channel(small_run, capsys):
    small_run.keeper()
    consumer = small_run.join("c:0")
    channel = small_run.channel(consumer, "c")
    channel.put_batch(range(3))
    assert [channel.get(), channel.get()] == [0, 1]
    last = channel.get(async_op=True)
    channel.task_done()
    channel.close()
    small_run.channel(consumer, "c", incarnation=1)
    last.abandon()
    with pytest.raises(ChannelClosed):
        channel.get(timeout=PROMPTLY)
    assert "Traceback" not in capsys.readouterr().err, "the keeper has failed"
