"""Broadcasts that are handed on by a receiver, and those that fail halfway."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rlinf.scheduler import WorkerDied
from rlinf.scheduler.collective.broadcast import Broadcaster
from tests.unit_tests.scheduler.small_run import in_thread
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

LARGE = 100_000
A_MOMENT = 0.3


@pytest.mark.parametrize("size", [10, LARGE])
def test_what_is_handed_on_is_what_came_although_the_relay_uses_its_own_at_once(
    two_nodes, monkeypatch, size
):
    root = two_nodes.join("root:0")
    first, second = (two_nodes.join(name, node_rank=1) for name in ("first:0", "second:0"))
    groups = [(name, [0]) for name in ("root", "first", "second")]
    changed, relay = threading.Event(), Broadcaster._relay

    def relay_late(*args):
        # The relay is not to depend on who comes first.
        changed.wait(A_MOMENT)
        relay(*args)

    monkeypatch.setattr(Broadcaster, "_relay", relay_late)

    def take_and_change():
        taken = first.broadcaster.broadcast(None, groups, ("root", 0)).wait(PROMPTLY)
        taken += 1000
        changed.set()
        return taken

    for number in range(2):
        changed.clear()
        mine = in_thread(take_and_change)
        theirs = second.broadcaster.broadcast(None, groups, ("root", 0))
        sending = root.broadcaster.broadcast(np.full(size, float(number)), groups, ("root", 0))
        assert (in_thread(theirs.wait).wait() == number).all()
        assert (mine.wait() == number + 1000).all()
        in_thread(sending.wait).wait()


def test_a_broadcast_that_fails_halfway_keeps_no_shared_memory(small_run, monkeypatch):
    root, *others = (small_run.join(f"{name}:0") for name in ("root", "one", "two", "three"))
    groups = [(name, [0]) for name in ("root", "one", "two", "three")]
    answer = root.endpoint.answer

    def answer_the_dead(connection, *args):
        if connection.identity["name"] == "two:0":
            raise WorkerDied("two:0")
        answer(connection, *args)

    monkeypatch.setattr(root.endpoint, "answer", answer_the_dead)
    with pytest.raises(WorkerDied, match="two:0"):
        root.broadcaster.broadcast(np.zeros(LARGE), groups, ("root", 0))
    taking = others[0].broadcaster.broadcast(None, groups, ("root", 0))
    assert len(in_thread(taking.wait).wait()) == LARGE
    del taking
    wait_until(lambda: root.endpoint.packer.pool.stats().blocks == 0)
