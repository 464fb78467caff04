"""Broadcasts that are handed on by a receiver, and those that fail halfway."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rlinf.scheduler import CallCancelled, WorkerDied
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


def test_members_list_each_other_as_they_like_and_begin_in_any_order(two_nodes):
    root, *others = (two_nodes.join(f"a:{rank}", node_rank=rank // 2) for rank in range(4))
    listed = [
        [("a", [3, 1, 2, 0])],
        [("a", 0), ("a", range(1, 4))],
        [("a", (2,)), ("a", [0, 1, 3])],
    ]
    some = [("a", [1, 0])]
    sent = [
        root.broadcaster.broadcast(obj, groups, ("a", 0))
        for obj, groups in (("all", [("a", range(4))]), ("some", some), ("all again", listed[0]))
    ]
    taken = others[0].broadcaster.broadcast(None, some, ("a", 0))
    assert in_thread(taken.wait).wait() == "some"
    for due in ("all", "all again"):
        for member, groups in zip(others, listed, strict=True):
            taken = member.broadcaster.broadcast(None, groups, ("a", 0))
            assert in_thread(taken.wait).wait() == due
    for work in sent:
        in_thread(work.wait).wait()


def test_who_is_no_member_is_told_who_is(small_run):
    stranger = small_run.join("b:0")
    groups = [("a", range(4096)), ("a", [5000])]
    with pytest.raises(ValueError, match="b:0 calls a broadcast of a:0-4095, a:5000, of which"):
        stranger.broadcaster.broadcast(None, groups, None)
    with pytest.raises(ValueError, match="the source b:0 is not a member of .* of a:0-4095"):
        stranger.broadcaster.broadcast(None, groups, ("b", 0))


def test_a_broadcast_that_fails_halfway_keeps_no_shared_memory(small_run, monkeypatch):
    root, *others = (small_run.join(f"{name}:0") for name in ("root", "first", "second", "third"))
    groups = [(name, [0]) for name in ("root", "first", "second", "third")]
    answer = root.endpoint.answer

    def answer_the_dead(connection, *args):
        if connection.identity["name"] == "second:0":
            raise WorkerDied("second:0")
        answer(connection, *args)

    monkeypatch.setattr(root.endpoint, "answer", answer_the_dead)
    with pytest.raises(WorkerDied, match="second:0"):
        root.broadcaster.broadcast(np.zeros(LARGE), groups, ("root", 0))
    taking = others[0].broadcaster.broadcast(None, groups, ("root", 0))
    assert len(in_thread(taking.wait).wait()) == LARGE
    del taking
    wait_until(lambda: root.endpoint.packer.pool.stats().blocks == 0)


def test_a_broadcast_that_was_given_up_is_not_taken_for_the_next_one(two_nodes):
    """Source and receiver are woken, and what was on its way is dropped."""
    root, waiting, late = (two_nodes.join(f"a:{rank}", node_rank=rank // 2) for rank in range(3))
    both, all_of_them = [("a", [0, 1])], [("a", range(3))]

    def begin(member, obj, groups, source=("a", 0)):
        prefix = member.exchange.prefix
        return member.broadcaster.broadcast(obj, groups, source, prefix=prefix)

    # One that a receiver has not taken, and one whose source never begins.
    sent, missed = begin(root, "old", all_of_them), begin(waiting, None, both)
    for member in (root, waiting, late):
        member.exchange.give_up(0)
    for work in (sent, missed):
        with pytest.raises(CallCancelled):
            in_thread(work.wait).wait()
    for member in (root, waiting, late):
        member.exchange.begin(1)
    again = begin(root, "new", all_of_them)
    for member in (waiting, late):
        assert in_thread(begin(member, None, all_of_them).wait).wait() == "new"
    in_thread(again.wait).wait()
