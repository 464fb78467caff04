"""Large items with their producer: room for them is waited for, and they go with their consumer."""

from __future__ import annotations

import multiprocessing as mp
import os
import resource
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from rlinf.scheduler import ItemLost, WaitTimeout, trace
from rlinf.scheduler.channel.client import INLINE_BYTES
from rlinf.scheduler.collective.shm import SegmentPool
from rlinf.scheduler.collective.shm_budget import NodeBudget
from tests.long_tests import long_test
from tests.unit_tests.scheduler.small_run import SmallRun, in_thread
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

MiB = 1 << 20
LARGE = 5 * INLINE_BYTES
ITEM_BYTES = 5_000_000


def give_budget(member, nbytes, folder):
    """Gives a member a budget of its own."""
    packer = member.endpoint.packer
    packer.pool.close()
    packer.pool = SegmentPool(NodeBudget(nbytes, str(folder / "table")))
    return packer.pool


def item(number):
    return np.full(ITEM_BYTES, number % 251, np.uint8)


# -- room ------------------------------------------------------------------------------------------


def in_a_process(function, folder, seconds=3 * PROMPTLY):
    """Runs a test in a process of its own, whose limits it may lower."""
    process = mp.get_context("spawn").Process(target=function, args=(folder,), daemon=True)
    process.start()
    process.join(seconds)
    try:
        assert process.exitcode == 0, "what it raised is above" if process.exitcode else "it hangs"
    finally:
        process.kill()


def queue_many_items(folder: Path) -> None:
    """Put and get many large items with 16 more files."""
    run = SmallRun(folder)
    run.keeper()
    producer, consumer = run.join("p:0"), run.join("c:0")
    give_budget(producer, 512 * MiB, folder)
    channel, taking = run.channel(producer, "c"), run.channel(consumer, "c")
    channel.put(item(0))
    taking.get()
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(max(used) + 20) if number not in used]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[16], hard))
    for number in range(60):
        channel.put(item(number))
    assert [taking.get(timeout=PROMPTLY)[-1] for _ in range(60)] == list(range(60))
    run.close()


def test_many_queued_items_need_few_files(tmp_path):
    in_a_process(queue_many_items, tmp_path)


class Recorder:
    """Remembers the names of spans."""

    def __init__(self):
        self.names = set()

    def add(self, name, kind, begin, end):
        if kind == trace.WAIT and end > begin:
            self.names.add(name)


def test_a_producer_that_is_far_ahead_waits_by_name(small_run, tmp_path, monkeypatch):
    small_run.keeper()
    producer, consumer = small_run.join("p:0"), small_run.join("c:0")
    pool = give_budget(producer, 32 * MiB, tmp_path)
    channel, taking = small_run.channel(producer, "c"), small_run.channel(consumer, "c")
    recorder = Recorder()
    monkeypatch.setattr(trace, "current", lambda: recorder)

    def produce():
        for number in range(25):
            channel.put(item(number))

    producing = in_thread(produce)
    wait_until(lambda: pool._waiting)
    queued = len(producer.channels.outbox)
    assert 4 <= queued <= 6, "as many as the budget holds"
    with pytest.raises(WaitTimeout, match="room for 5 MiB in the shared memory of this node"):
        channel.put(item(0), timeout=0.05)
    assert [taking.get(timeout=PROMPTLY)[-1] for _ in range(25)] == list(range(25))
    producing.wait()
    assert "room in shared memory" in recorder.names


def queue_five_thousand_items(folder: Path) -> None:
    """Put and get 25 GB with 1024 files."""
    run = SmallRun(folder)
    run.keeper()
    producer, consumer = run.join("p:0"), run.join("c:0")
    channel, taking = run.channel(producer, "c"), run.channel(consumer, "c")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    pool = producer.endpoint.packer.pool
    done = threading.Event()

    def produce():
        for number in range(5000):
            channel.put(item(number))
        done.set()

    producing = in_thread(produce)
    wait_until(lambda: pool._waiting or done.is_set(), 200)
    for number in range(5000):
        assert taking.get(timeout=3 * PROMPTLY)[-1] == number % 251
    producing.wait()
    run.close()


@long_test
@pytest.mark.timeout(600)
def test_five_thousand_items_of_5_mb_with_1024_files(tmp_path):
    in_a_process(queue_five_thousand_items, tmp_path, 500)


# -- consumers that die ----------------------------------------------------------------------------


@pytest.mark.parametrize("same_node", [True, False])
def test_items_of_a_dead_consumer_are_dropped(small_run, monkeypatch, same_node):
    small_run.keeper()
    producer, consumer = small_run.join("p:0"), small_run.join("c:0")
    if not same_node:
        monkeypatch.setattr(producer.endpoint, "shares_memory", lambda peer: False)
    channel, taking = small_run.channel(producer, "c"), small_run.channel(consumer, "c")
    for _ in range(3):
        channel.put(b"x" * LARGE)
    held = taking.get(timeout=PROMPTLY)
    assert len(producer.channels.outbox) == 3
    small_run.kill(consumer)
    wait_until(lambda: len(producer.channels.outbox) == 0)
    wait_until(lambda: producer.endpoint.packer.pool.stats().blocks == 0)
    assert len(held) == LARGE
    stats = channel.stats()
    assert (stats["lost"], stats["depth"], stats["bytes"]) == (1, 0, 0)
    with pytest.raises(ItemLost, match="c:0 died with 1 item"):
        channel.get(timeout=PROMPTLY)


def test_a_put_that_waits_for_room_in_a_channel_that_is_lost_leaves_no_item(small_run):
    small_run.keeper()
    producer, consumer = small_run.join("p:0"), small_run.join("c:0")
    channel = small_run.channel(producer, "c", maxsize=1)
    taking = small_run.channel(consumer, "c", maxsize=1)
    channel.put(b"x" * LARGE)
    taking.get(timeout=PROMPTLY)
    channel.put(b"y" * LARGE)
    waiting = channel.put(b"z" * LARGE, async_op=True)
    small_run.kill(consumer)
    with pytest.raises(ItemLost, match="c:0 died with 1 item"):
        waiting.wait(timeout=PROMPTLY)
    wait_until(lambda: len(producer.channels.outbox) == 0)


def test_a_dead_consumer_makes_room_when_its_items_are_given_to_another(small_run):
    small_run.keeper()
    producer, consumer, other = (small_run.join(name) for name in ("p:0", "c:0", "o:0"))
    channel, taking, last = (
        small_run.channel(member, "c", redeliver=True) for member in (producer, consumer, other)
    )
    channel.put(b"x" * LARGE)
    taking.get(timeout=PROMPTLY)
    small_run.kill(consumer)
    assert last.get(timeout=PROMPTLY) == b"x" * LARGE
    last.task_done()
    wait_until(lambda: len(producer.channels.outbox) == 0)
    wait_until(lambda: producer.endpoint.packer.pool.stats().blocks == 0)


# -- producers and keepers that go -----------------------------------------------------------------


def test_a_producer_that_is_started_anew_keeps_its_items(small_run):
    small_run.keeper()
    producer, consumer = small_run.join("p:0"), small_run.join("c:0")
    taking = small_run.channel(consumer, "c")
    small_run.channel(producer, "c").put(b"x" * LARGE)
    taking.get(timeout=PROMPTLY)
    small_run.kill(producer)
    producer = small_run.join("p:0")
    small_run.channel(producer, "c").put(b"y" * LARGE)
    # This says that the item of the first one is not needed any more; both had the same number.
    assert taking.get(timeout=PROMPTLY) == b"y" * LARGE


def test_items_go_with_their_keeper(small_run):
    keeper = small_run.keeper()
    producer = small_run.join("p:0")
    channel = small_run.channel(producer, "c")
    for _ in range(3):
        channel.put(b"x" * LARGE)
    small_run.kill(keeper)
    wait_until(lambda: len(producer.channels.outbox) == 0)
    assert producer.endpoint.packer.pool.stats().blocks == 0


def test_who_reads_a_new_channel_is_done_with_the_closed_one_that_had_its_name(small_run):
    small_run.keeper()
    producer, consumer = small_run.join("p:0"), small_run.join("c:0")
    channel, taking = small_run.channel(producer, "c"), small_run.channel(consumer, "c")
    channel.put(b"x" * LARGE)
    taking.get(timeout=PROMPTLY)
    channel.close()
    small_run.channel(producer, "c", incarnation=1).put("small")
    assert len(producer.channels.outbox) == 1
    assert small_run.channel(consumer, "c", incarnation=1).get(timeout=PROMPTLY) == "small"
    wait_until(lambda: len(producer.channels.outbox) == 0)
    wait_until(lambda: producer.endpoint.packer.pool.stats().blocks == 0)


def test_an_item_whose_producer_cannot_be_reached_goes_to_another_consumer(small_run):
    small_run.keeper()
    producer, consumer, other = (small_run.join(name) for name in ("p:0", "c:0", "o:0"))
    channel, taking, last = (
        small_run.channel(member, "c", redeliver=True) for member in (producer, consumer, other)
    )
    channel.put(b"x" * LARGE)
    taking.get(timeout=PROMPTLY)
    taking.task_done()
    producer.endpoint.connections._out["c:0"].sock.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: producer.endpoint.gone("c:0") and consumer.endpoint.gone("p:0"))
    channel.put(b"y" * LARGE)
    with pytest.raises(ItemLost, match="connection to that broke; it is in the channel again"):
        in_thread(taking.get).wait()
    assert last.get(timeout=PROMPTLY) == b"y" * LARGE
    assert channel.stats()["lost"] == 0


def test_a_message_for_a_peer_that_has_just_died_is_not_kept(small_run, monkeypatch):
    sender, receiver = small_run.join("s:0"), small_run.join("r:0")
    sender.mailbox.send("r:0", "hello").wait(timeout=PROMPTLY)
    pool = sender.endpoint.packer.pool
    write = pool.write

    def write_late(*args, **kwargs):
        small_run.kill(receiver)
        wait_until(lambda: sender.endpoint.gone("r:0"))
        return write(*args, **kwargs)

    monkeypatch.setattr(pool, "write", write_late)
    sent = sender.mailbox.send("r:0", b"x" * LARGE)
    wait_until(sent.done)
    wait_until(lambda: pool.stats().blocks == 0)
