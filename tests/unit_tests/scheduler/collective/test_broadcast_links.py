"""Broadcasts whose large tensors go by link: gloo between members of a run in this process."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf.scheduler import CollectiveGroupOptions, SchedulerError, WorkerDied
from rlinf.scheduler.collective import device_links
from rlinf.scheduler.collective.broadcast import Broadcaster
from rlinf.scheduler.collective.device_group import DeviceGroup
from rlinf.scheduler.collective.device_link import DeviceLinkError
from rlinf.scheduler.collective.endpoint import Endpoint
from rlinf.scheduler.collective.link_tensors import LINK_BYTES
from tests.unit_tests.scheduler.comm_workers import equal
from tests.unit_tests.scheduler.link_workers import large_nest
from tests.unit_tests.scheduler.small_run import SmallRun, in_thread
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

LARGE = LINK_BYTES // 4


@pytest.fixture(autouse=True)
def by_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLINF_DEVICE_LINK", "gloo")


@pytest.fixture
def three_nodes(tmp_path: Path):
    run = SmallRun(tmp_path, num_nodes=3)
    yield run
    run.close()


class Counts:
    """What left a process: bytes by link, transfers, and the largest message."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.linked: Counter[int] = Counter()
        self.message = 0
        send, write = DeviceGroup.send, Endpoint._write

        def counted_send(group: DeviceGroup, number: int, tensors: Any, *rest: Any) -> None:
            self.linked[len(group._order) - 1] += sum(tensor.nbytes for tensor in tensors)
            send(group, number, tensors, *rest)

        def counted_write(*args: Any, **named: Any) -> None:
            self.message = max(self.message, sum(map(len, args[3])))
            write(*args, **named)

        patch.setattr(DeviceGroup, "send", counted_send)
        patch.setattr(Endpoint, "_write", counted_write)


def groups_of(*names: str) -> list[tuple[str, list[int]]]:
    return [(name, [0]) for name in names]


def join(run: SmallRun, *names: str, nodes: tuple[int, ...] = ()) -> list[Any]:
    places = nodes or (0,) * len(names)
    return [run.join(f"{n}:0", node_rank=p) for n, p in zip(names, places, strict=True)]


def send(member: Any, obj: Any, *names: str) -> Any:
    """Broadcast from a member, whose name comes first."""
    source = (names[0], 0)
    return in_thread(lambda: member.broadcaster.broadcast(obj, groups_of(*names), source).wait())


def take(member: Any, *names: str) -> Any:
    """Receive a broadcast of the first of some members."""
    source = (names[0], 0)
    return in_thread(lambda: member.broadcaster.broadcast(None, groups_of(*names), source).wait())


def outcome(waiting: Any) -> BaseException:
    """The error that a thread ends with."""
    with pytest.raises(BaseException) as caught:
        waiting.wait()
    return caught.value


def links(member: Any) -> list[str]:
    return sorted(link.address.id for link in member.endpoint.links._all())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_large_tensors_leave_once_and_are_in_no_message(small_run, monkeypatch, count):
    names = ("root", "one", "two", "three")[: count + 1]
    root, *others = join(small_run, *names)
    counts = Counts(monkeypatch)
    for seed in range(2):
        nest = large_nest(seed)
        nest.pop("array")
        taking = [take(other, *names) for other in others]
        sending = send(root, nest, *names)
        assert all(equal(waiting.wait(), nest) for waiting in taking)
        sending.wait()
    leaves = [t for t in torch.utils._pytree.tree_leaves(nest) if isinstance(t, torch.Tensor)]
    large = sum(tensor.nbytes for tensor in leaves if tensor.nbytes >= LINK_BYTES)
    assert counts.linked == {count: 2 * large}
    assert counts.message < LINK_BYTES
    assert root.endpoint.packer.pool.stats().blocks == 0, "nor in shared memory"
    assert len(links(root)) == 1 and all(links(other) == links(root) for other in others)


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, 10 * LARGE + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_tensors_of_all_sizes_arrive_equal(small_run, size, dtype):
    root, one, two = join(small_run, "root", "one", "two")
    tensor = (torch.arange(size) % 7).to(dtype)
    taking = [take(member, "root", "one", "two") for member in (one, two)]
    sending = send(root, [tensor, "text"], "root", "one", "two")
    assert all(equal(waiting.wait(), [tensor, "text"]) for waiting in taking)
    sending.wait()


def test_receivers_of_different_kinds_get_the_same(three_nodes, monkeypatch):
    names = ("root", "near", "plain", "far", "neighbour", "bare")
    members = join(three_nodes, *names, nodes=(0, 0, 0, 1, 1, 2))
    root, *others = members
    without = ("plain:0", "bare:0")
    root.endpoint.links._reach = {name: frozenset() for name in without}
    counts = Counts(monkeypatch)
    nest = large_nest(3)
    for _ in range(2):
        taking = [take(other, *names) for other in others]
        sending = send(root, nest, *names)
        assert all(equal(waiting.wait(), nest) for waiting in taking)
        sending.wait()
    assert list(counts.linked) == [3], "near, far and neighbour are one group"
    assert [bool(links(other)) for other in others] == [True, False, True, True, False]
    counts.linked.clear()
    taking = [take(other, *names) for other in others]
    send(root, {"small": torch.ones(5)}, *names)
    assert all(bool((waiting.wait()["small"] == 1).all()) for waiting in taking)
    assert not counts.linked


def test_a_chain_of_hosts_says_what_comes_by_link(three_nodes):
    names = ("root", "one", "two", "beside")
    root, *others = join(three_nodes, *names, nodes=(0, 1, 2, 2))
    nest = large_nest(5)
    taking = [take(other, *names) for other in others]
    sending = send(root, nest, *names)
    assert all(equal(waiting.wait(), nest) for waiting in taking)
    sending.wait()
    assert all(links(other) == links(root) for other in others)


def test_broadcasts_in_opposite_directions_and_messages_between(small_run):
    names = ("a", "b", "c")
    members = dict(zip(names, join(small_run, *names), strict=True))
    rounds = 15

    def talk(own: str) -> bool:
        member, others = members[own], [name for name in names if name != own]
        works, ok = [], True
        for i in range(rounds):
            value = torch.full((LARGE + i,), float(i))
            works.append(member.broadcaster.broadcast(value, groups_of(*names), (own, 0)))
            works += [member.mailbox.send(f"{other}:0", value + 100) for other in others]
        for i in range(rounds):
            for other in others:
                taken = member.broadcaster.broadcast(None, groups_of(*names), (other, 0)).wait()
                ok &= bool((taken == i).all()) and len(taken) == LARGE + i
                ok &= bool((member.mailbox.recv(f"{other}:0").wait() == i + 100).all())
        for work in works:
            work.wait()
        return ok

    talking = [in_thread(partial(talk, name)) for name in names]
    assert all(waiting.wait() for waiting in talking)
    assert [len(links(member)) for member in members.values()] == [7] * 3


def test_a_process_begins_one_transfer_at_a_time_and_waits_for_all_members(small_run, monkeypatch):
    names = ("a", "b", "c")
    members = join(small_run, *names)
    lock, inside, seen = threading.Lock(), Counter(), []
    finish = DeviceGroup._move

    def watch(group: DeviceGroup, number: int, tensors: Any, limit: Any) -> None:
        real = group._group.broadcast

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(group_of_torch, name)

            def broadcast(self, *args: Any) -> Any:
                with lock:
                    inside[group._turn] += 1
                    seen.append(inside[group._turn])
                    owners.append(group._turn._owner is group)
                try:
                    return real(*args)
                finally:
                    with lock:
                        inside[group._turn] -= 1

        group_of_torch = group._group
        group._group = Watched()
        try:
            finish(group, number, tensors, limit)
        finally:
            group._group = group_of_torch

    owners: list[bool] = []
    monkeypatch.setattr(DeviceGroup, "_move", watch)
    works = [
        member.broadcaster.broadcast(torch.ones(LARGE), groups_of(*names), (name, 0))
        for _ in range(4)
        for name, member in zip(names, members, strict=True)
    ]
    for _ in range(4):
        for name, member in zip(names, members, strict=True):
            for other in (n for n in names if n != name):
                member.broadcaster.broadcast(None, groups_of(*names), (other, 0)).wait(PROMPTLY)
    for work in works:
        work.wait(PROMPTLY)
    assert len(seen) == 3 * 3 * 4 and set(seen) == {1} and all(owners)


def test_a_broadcast_that_nobody_takes_stops_no_other(small_run):
    names = ("root", "one", "two")
    root, one, two = join(small_run, *names)
    first = root.broadcaster.broadcast(torch.zeros(LARGE), groups_of(*names), ("root", 0))
    taken = take(one, *names)
    assert bool((taken.wait() == 0).all())
    for i in range(3):
        # In a stream of its own, over the same link.
        works = [root.mailbox.send(name, torch.full((LARGE,), float(i))) for name in ("one:0",)]
        assert bool((one.mailbox.recv("root:0").wait(PROMPTLY) == i).all())
        works += [root.broadcaster.broadcast(torch.ones(LARGE), groups_of(*names), ("root", 0))]
        assert bool((take(one, *names).wait() == 1).all())
    assert not first.done()
    assert bool((take(two, *names).wait() == 0).all())
    first.wait(PROMPTLY)


def test_unused_links_are_closed_and_made_again(small_run, monkeypatch):
    monkeypatch.setattr(device_links, "MAX_LINKS", 2)
    names = ("root", "one", "two", "three")
    root, *others = join(small_run, *names)
    sets = [("one",), ("two",), ("one", "two"), ("one", "three"), ("one",), ("two", "three")]
    by_name = dict(zip(names[1:], others, strict=True))
    for i, receivers in enumerate(sets * 2):
        tensor = torch.full((LARGE,), float(i))
        taking = [take(by_name[name], "root", *receivers) for name in receivers]
        sending = send(root, tensor, "root", *receivers)
        assert all(bool((waiting.wait() == i).all()) for waiting in taking)
        sending.wait()
        assert len(root.endpoint.links._out) <= 2
    wait_until(lambda: len(links(root)) == 2)
    wait_until(lambda: sum(len(links(other)) for other in others) == 3)
    assert not root.endpoint.links._ended and not others[0].endpoint.links._ended
    used = links(root)
    taking = [take(by_name[name], "root", "two", "three") for name in ("two", "three")]
    send(root, torch.ones(LARGE), "root", "two", "three").wait()
    assert [waiting.wait().sum() for waiting in taking] == [LARGE] * 2
    assert links(root) == used


def test_a_group_has_the_options_that_its_receivers_have_in_common(small_run):
    names = ("root", "one", "two", "three")
    root, *others = join(small_run, *names)
    options = CollectiveGroupOptions(accel_max_ctas=4)
    for name in ("one:0", "two:0"):
        root.endpoint.links.set_options(name, options)
    for receivers, due in (("one", "two"), options), (("one", "three"), CollectiveGroupOptions()):
        members = [m for n, m in zip(names[1:], others, strict=True) if n in receivers]
        taking = [take(member, "root", *receivers) for member in members]
        send(root, torch.ones(LARGE), "root", *receivers).wait()
        assert [float(waiting.wait()[0]) for waiting in taking] == [1.0, 1.0]
        assert members[-1].endpoint.links._all()[-1].address.options == due
    with pytest.raises(ValueError, match="cannot be changed"):
        root.endpoint.links.set_options("three:0", options)


def test_options_of_a_broadcast_are_those_of_its_source_for_its_receivers(small_run):
    names = ("root", "one", "two")
    root, *others = join(small_run, *names)
    options, groups = CollectiveGroupOptions(accel_max_ctas=4), [(name, 0) for name in names]
    taking = [m.broadcaster.broadcast(None, groups, None, options=options) for m in others]
    root.broadcaster.broadcast(torch.ones(LARGE), groups, None, options=options)
    for member, work in zip(others, taking, strict=True):
        assert float(in_thread(work.wait).wait()[0]) == 1.0
        assert member.endpoint.links._all()[-1].address.options == options
        assert member.endpoint.links._options == {"root:0": options}
        with pytest.raises(TypeError, match="CollectiveGroupOptions"):
            member.broadcaster.broadcast(None, groups, None, options={})


def test_a_receiver_that_cannot_be_told_ends_the_link_for_all(small_run, monkeypatch):
    names = ("root", "one", "two")
    root, one, two = join(small_run, *names)
    taking = [take(member, *names) for member in (one, two)]
    send(root, torch.ones(LARGE), *names).wait()
    [waiting.wait() for waiting in taking]
    answer = root.endpoint.answer

    def answer_the_dead(connection: Any, kind: str, *args: Any) -> None:
        if connection.identity["name"] == "two:0" and kind == "spread":
            raise WorkerDied("two:0", signal="SIGKILL")
        answer(connection, kind, *args)

    monkeypatch.setattr(root.endpoint, "answer", answer_the_dead)
    taking = take(one, *names)
    assert isinstance(outcome(send(root, torch.ones(LARGE), *names)), WorkerDied)
    error = outcome(taking)
    assert isinstance(error, WorkerDied) and "two:0" in str(error)
    monkeypatch.setattr(root.endpoint, "answer", answer)
    taking = [take(member, *names) for member in (one, two)]
    send(root, torch.full((LARGE,), 2.0), *names).wait()
    assert [float(waiting.wait()[0]) for waiting in taking] == [2.0, 2.0]


def test_a_relay_that_fails_ends_the_link_for_all(two_nodes, monkeypatch):
    names = ("root", "relay", "second")
    root, relay, second = join(two_nodes, *names, nodes=(0, 1, 1))
    copy = Broadcaster._copy

    def fail(*_: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(Broadcaster, "_copy", fail)
    taking = take(relay, *names)
    for error in (outcome(send(root, torch.ones(LARGE), *names)), outcome(taking)):
        assert isinstance(error, SchedulerError) and "no room" in str(error)
    monkeypatch.setattr(Broadcaster, "_copy", copy)
    taking = [take(member, *names) for member in (relay, second)]
    send(root, torch.full((LARGE,), 2.0), *names).wait()
    assert [float(waiting.wait()[0]) for waiting in taking] == [2.0, 2.0]


def test_a_transfer_that_fails_at_the_source_is_told_to_all(small_run, monkeypatch):
    names = ("root", "one", "two")
    root, one, two = join(small_run, *names)
    move = DeviceGroup.send

    def fail(*_: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(DeviceGroup, "send", fail)
    monkeypatch.setattr("rlinf.scheduler.collective.device_link._GRACE", 0.1)
    taking = [take(member, *names) for member in (one, two)]
    error = outcome(send(root, torch.ones(LARGE), *names))
    assert isinstance(error, DeviceLinkError) and "no kernel" in str(error)
    for waiting in taking:
        error = outcome(waiting)
        assert isinstance(error, DeviceLinkError) and "were lost" in str(error)
    monkeypatch.setattr(DeviceGroup, "send", move)
    taking = [take(member, *names) for member in (one, two)]
    send(root, torch.full((LARGE,), 2.0), *names).wait()
    assert [float(waiting.wait()[0]) for waiting in taking] == [2.0, 2.0]


class Fickle:
    """An object that has another tensor each time it is pickled."""

    def __init__(self) -> None:
        self.count = 0

    def __getstate__(self) -> dict[str, Any]:
        self.count += 1
        return {"tensor": torch.ones(LARGE * self.count)}


def test_an_object_that_pickles_differently_each_time_is_refused(small_run):
    names = ("root", "one", "plain")
    root, one, _ = join(small_run, *names)
    root.endpoint.links._reach = {"plain:0": frozenset()}
    error = outcome(send(root, Fickle(), *names))
    assert isinstance(error, TypeError) and "pickling the object twice" in str(error)
    assert not links(root) and not links(one)
