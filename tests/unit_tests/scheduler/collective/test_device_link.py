"""Links between real workers, over gloo: what NCCL does between GPUs, with tensors of the host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.scheduler import Cluster, CollectiveGroupOptions, FlexiblePlacementStrategy
from rlinf.scheduler.collective import device_group
from rlinf.scheduler.collective.device_links import DeviceLinks
from rlinf.scheduler.collective.link_tensors import LinkKey
from tests.unit_tests.scheduler.link_workers import Linker
from tests.unit_tests.scheduler.waits import PROMPTLY


@pytest.fixture(scope="module")
def linked(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose workers send large tensors of the host by link."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLINF_DEVICE_LINK", "gloo")
        logs = str(tmp_path_factory.mktemp("logs"))
        with Cluster(num_nodes=1, distributed_log_dir=logs) as cluster:
            yield cluster


def launch(cluster: Cluster, name: str, count: int = 2) -> Any:
    strategy = FlexiblePlacementStrategy([[i] for i in range(count)])
    return Linker.create_group().launch(cluster, strategy, name=name)


@pytest.fixture(scope="module")
def pair(linked: Cluster) -> Any:
    """Two workers for tests that do them no harm."""
    return launch(linked, "pair")


def test_nests_arrive_equal_and_in_order_both_ways_at_once(pair: Any) -> None:
    assert pair.swap("pair", 12).wait() == [True, True]
    expected = [[f"rlinf-link {way} pair:{1 - rank}" for way in ("from", "to")] for rank in (0, 1)]
    assert pair.links().wait() == expected


def test_both_sides_are_set_up_as_the_sender_says(linked: Cluster) -> None:
    options = CollectiveGroupOptions(accel_max_ctas=4, is_high_priority_stream=True)
    group = launch(linked, "options")
    assert group.pass_with_options("options", options).wait() == [[options], [options]]


def test_many_links_at_once_do_not_wait_for_each_other(linked: Cluster) -> None:
    group = launch(linked, "all", 3)
    assert group.swap_with_all("all", 30).wait(timeout=60) == [True] * 3
    assert [len(names) for names in group.links().wait()] == [4] * 3


def test_several_threads_send_at_once(pair: Any) -> None:
    sent = pair.execute_on(0).send_from_threads("pair", 1, 4, 15)
    (labels,) = pair.execute_on(1).recv_labelled("pair", 0, 60).wait()
    sent.wait()
    assert sorted(labels) == list(range(60))


@pytest.mark.parametrize("how", ["sync", "mixed"])
def test_order_is_kept_when_the_window_is_full(pair: Any, how: str) -> None:
    sent = pair.execute_on(0).send_many("pair", 1, 400, 1 << 18, how)
    assert pair.execute_on(1).slow_recv("pair", 0, 400).wait() == [list(range(400))]
    sent.wait()


def test_a_sent_tensor_may_be_changed_afterwards(pair: Any) -> None:
    pair.execute_on(0).mutate_after_send("pair").wait()
    assert pair.execute_on(1).sum_received("pair").wait() == [200_000.0]


def test_a_message_that_nobody_receives_blocks_nothing(pair: Any) -> None:
    pair.execute_on(0).send_unwanted("pair", 1, 3).wait()
    assert pair.swap("pair", 2).wait() == [True, True]


def test_the_users_own_process_group_works_beside_links(pair: Any) -> None:
    sums = [1.0 + 2 * i for i in range(5)]
    assert pair.all_reduce_beside("pair", 5).wait() == [sums, sums]


def test_tensors_that_find_no_memory_fail_on_both_sides_and_alone(pair: Any) -> None:
    sent = pair.execute_on(0).send_when_asked("pair", 1, 220)
    (lost,) = pair.execute_on(1).recv_without_memory("pair", 0).wait(timeout=3 * PROMPTLY)
    assert lost.startswith("DeviceLinkError: tensors from pair:0 were lost") and "memory" in lost
    (told,) = sent.wait(timeout=3 * PROMPTLY)
    assert told.startswith("DeviceLinkError: pair:1 says") or "tensors to pair:1" in told
    assert pair.swap("pair", 2).wait(timeout=3 * PROMPTLY) == [True, True]


def test_a_receiver_that_dies_in_the_middle_fails_the_sender(linked: Cluster) -> None:
    group = launch(linked, "dying")
    assert group.swap("dying", 1).wait() == [True, True]
    pid = group.pid().wait()[1]
    os.kill(pid, signal.SIGSTOP)
    sending = group.execute_on(0).send_huge_or_error("dying", 1, 200)
    time.sleep(0.5)
    assert not sending.done(), "a receiver that stands still cannot have taken it"
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    (message,) = sending.wait(timeout=3 * PROMPTLY)
    assert time.monotonic() - begin < PROMPTLY
    assert message.startswith("WorkerDied: worker dying:1") and "SIGKILL" in message
    assert group.execute_on(0).links(0).wait() == [[]]


def test_a_sender_that_dies_in_the_middle_fails_the_receiver(linked: Cluster) -> None:
    group = launch(linked, "leaving")
    waiting = group.execute_on(0).recv_or_error("leaving", 1)
    group.execute_on(1).send_huge_and_die("leaving", 0, 500)
    (message,) = waiting.wait(timeout=3 * PROMPTLY)
    assert message.startswith("WorkerDied: worker leaving:1")
    assert group.execute_on(0).links(0).wait() == [[]]


def test_broadcasts_of_all_at_once_arrive_equal(linked: Cluster) -> None:
    group = launch(linked, "casting", 3)
    ranks = [0, 1, 2]
    assert group.broadcast_nests("casting", ranks, 6).wait(timeout=60) == [True] * 3
    names = group.links().wait()[0]
    assert names == [
        "rlinf-link from casting:1",
        "rlinf-link from casting:2",
        "rlinf-link to casting:1, casting:2",
    ]


@pytest.mark.parametrize("source", [0, 1], ids=["receiver", "source"])
def test_a_death_in_a_broadcast_fails_all_others_and_names_the_dead(
    linked: Cluster, source: int
) -> None:
    name = f"fallen{source}"
    group = launch(linked, name, 3)
    assert group.broadcast_nests(name, [0, 1, 2], 1).wait(timeout=60) == [True] * 3
    group.execute_on(1).die_in_next_transfer().wait()
    group.execute_on(1).broadcast_or_error(name, source, 100)
    waiting = [group.execute_on(rank).broadcast_or_error(name, source, 100) for rank in (0, 2)]
    begin = time.monotonic()
    for handle in waiting:
        (message,) = handle.wait(timeout=3 * PROMPTLY)
        assert message.startswith(f"WorkerDied: worker {name}:1") and "SIGKILL" in message
    assert time.monotonic() - begin < PROMPTLY
    left = [group.execute_on(rank).broadcast_nests(name, [0, 2], 2) for rank in (0, 2)]
    assert [handle.wait(timeout=60) for handle in left] == [[True], [True]]


def test_a_receiver_that_stands_still_keeps_a_broadcast_waiting_until_it_dies(
    linked: Cluster,
) -> None:
    group = launch(linked, "still", 3)
    assert group.broadcast_nests("still", [0, 1, 2], 1).wait(timeout=60) == [True] * 3
    pid = group.pid().wait()[1]
    os.kill(pid, signal.SIGSTOP)
    waiting = [group.execute_on(rank).broadcast_or_error("still", 0, 10) for rank in (0, 2)]
    time.sleep(0.5)
    assert not any(handle.done() for handle in waiting)
    os.kill(pid, signal.SIGKILL)
    for handle in waiting:
        (message,) = handle.wait(timeout=3 * PROMPTLY)
        assert message.startswith("WorkerDied: worker still:1") and "SIGKILL" in message


def test_a_peer_that_is_started_anew_gets_a_new_link(linked: Cluster, pair: Any) -> None:
    for _ in range(2):
        other = launch(linked, "other", 1)
        sent = pair.execute_on(0).send_many("other", 0, 3, 50_000, "mixed")
        assert other.recv_many("pair", 0, 3, "sync").wait() == [True]
        sent.wait()
        other._close()
    assert "rlinf-link to other:0" not in pair.execute_on(0).links(2).wait()[0]


# -- which tensors go by link: rules for GPUs, which need no GPU -------------------------------


def links_of(
    patch: pytest.MonkeyPatch, visible: list[int], peers: dict[str, list[int]], **changes: str
) -> DeviceLinks:
    """Links of a worker that sees some GPUs to peers that have some."""
    variables = {
        "RLINF_DEVICE_LINK": "nccl",
        "ACCELERATOR_TYPE": "NV_GPU",
    }
    for name, value in (variables | changes).items():
        patch.setenv(name, value)
    patch.setattr(device_group, "available", lambda _: True)
    infos = {
        name: SimpleNamespace(available_accelerators=theirs, accelerator_type="NV_GPU")
        for name, theirs in peers.items()
    }
    endpoint: Any = SimpleNamespace(
        on=lambda *_: None,
        info=infos.get,
        visible=visible,
        name="here",
        node_ip="127.0.0.1",
        run=SimpleNamespace(timeout=lambda _: 1.0, ports=None),
        lost=lambda _: None,
    )
    return DeviceLinks(endpoint)


def reach(
    patch: pytest.MonkeyPatch, visible: list[int], theirs: list[int], **changes: str
) -> set[int]:
    """Indices of the GPUs that a worker sees whose tensors go by link to a peer with some GPUs."""
    return set(links_of(patch, visible, {"there": theirs}, **changes).devices_for("there"))


def test_which_gpus_are_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reach(monkeypatch, [4, 5], [0]) == {0, 1}
    assert reach(monkeypatch, [4, 5], [5, 6]) == {0}, "a shared GPU goes by CUDA IPC"
    assert reach(monkeypatch, [4, 5], []) == set(), "the peer has none"
    assert reach(monkeypatch, [], [0]) == set()
    assert reach(monkeypatch, [4], [0], ACCELERATOR_TYPE="AMD_GPU") == set()
    assert reach(monkeypatch, [0, 1, 2, 3], [2]) == {0, 1, 3}, "one that sees all of its node"
    assert reach(monkeypatch, [4], [0], RLINF_DEVICE_LINK="off") == set()
    with pytest.raises(ValueError, match="RLINF_DEVICE_LINK='on'.*nccl.*gloo.*off"):
        reach(monkeypatch, [4], [0], RLINF_DEVICE_LINK="on")


def test_receivers_of_a_broadcast_are_one_group_unless_they_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A process that has not loaded torch has no tensors to send.
    pytest.importorskip("torch")
    peers = {"c": [3], "here": [4], "a": [1], "bare": [], "b": [2, 5]}
    routes = links_of(monkeypatch, [4, 5], peers).routes(peers)
    both, one = LinkKey(0, ("a", "b", "c")), LinkKey(1, ("a", "c", "here"))
    assert routes == {
        "a": (both, one),
        "b": (both,),
        "c": (both, one),
        "here": (one,),
    }
    shared = links_of(monkeypatch, [4], {"a": [1], "b": [1], "c": [2]}).routes("abc")
    first, second = LinkKey(0, ("a", "c")), LinkKey(0, ("b",))
    assert shared == {"a": (first,), "c": (first,), "b": (second,)}, "NCCL wants a GPU for each"
    assert links_of(monkeypatch, [], {"a": [1]}).routes("a") == {}
