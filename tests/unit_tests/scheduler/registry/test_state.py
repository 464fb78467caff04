"""The registry's rules, without sockets."""

from __future__ import annotations

import pytest

from rlinf.scheduler.address import WorkerAddress, WorkerInfo
from rlinf.scheduler.registry.state import RegistryState
from rlinf.scheduler.registry.waiters import Wait


def info(name: str, size: int = 2) -> WorkerInfo:
    address = WorkerAddress.from_name(name)
    return WorkerInfo(address, address.rank, size, node_port=1000 + address.rank)


def waits(answer) -> bool:
    return isinstance(answer, Wait)


def test_a_group_is_complete_when_all_ranks_are_ready():
    state = RegistryState()
    assert waits(state.group("g"))
    state.register(info("g:1"))
    assert waits(state.master("g"))
    state.register(info("g:0"))
    assert state.master("g") == ("127.0.0.1", 1000)
    state.make_ready("g:0")
    assert waits(state.group("g"))
    state.make_ready("g:1")
    assert [i.name for i in state.group("g")] == ["g:0", "g:1"]


def test_names_are_unique_while_their_owner_lives():
    state = RegistryState()
    state.register(info("g:0"))
    with pytest.raises(ValueError, match="registered already"):
        state.register(info("g:0"))
    state.died("g:0", "gone")
    assert state.register(info("g:0")) == 1
    state.left("g:0")
    assert state.register(info("g:0")) == 0, "a new group of the same name"


def test_a_dead_worker_is_not_waited_for():
    state = RegistryState()
    assert waits(state.lookup("g:0"))
    state.register(info("g:0"))
    state.died("g:0", "the peer closed the connection")
    with pytest.raises(ConnectionError, match="g:0 has died"):
        state.lookup("g:0")


def test_ports_belong_to_their_node_and_owner():
    state = RegistryState()
    assert state.lock_port("a", 0, 80)
    assert not state.lock_port("a", 0, 80), "two ports of one owner are two"
    assert not state.lock_port("b", 0, 80)
    assert state.lock_port("b", 1, 80)
    state.died("a", "")
    assert state.lock_port("b", 0, 80)


def test_locks_are_first_come_first_served_and_all_or_nothing():
    state = RegistryState()
    assert state.acquire("a", ["x", "y"]) is True
    assert waits(state.acquire("b", ["y", "z"]))
    assert waits(state.acquire("c", ["z"])), "b was there before"
    state.locks.release("a", ["x", "y"])
    assert waits(state.acquire("c", ["z"]))
    assert state.acquire("b", ["y", "z"]) is True
    state.locks.release("b", ["y", "z"])
    assert state.acquire("c", ["z"]) is True


def test_locks_are_reentrant_and_freed_by_death():
    state = RegistryState()
    state.acquire("a", ["x"])
    state.acquire("a", ["x"])
    state.locks.release("a", ["x"])
    assert waits(state.acquire("b", ["x"]))
    assert state.locks.holders(["x"]) == ["x is held by a"]
    state.died("a", "")
    assert state.acquire("b", ["x"]) is True
    with pytest.raises(ValueError, match="does not hold"):
        state.locks.release("a", ["x"])


def test_giving_up_lets_the_next_one_in():
    state = RegistryState()
    state.acquire("a", ["x"])
    assert waits(state.acquire("b", ["x"]))
    assert waits(state.acquire("c", ["x"]))
    state.locks.leave_queue("b", ["x"])
    state.locks.release("a", ["x"])
    assert state.acquire("c", ["x"]) is True


@pytest.mark.parametrize("name", ["", "a:b"])
def test_bad_group_names_are_refused(name):
    with pytest.raises(ValueError, match="not allowed"):
        WorkerAddress(name, (0,))


def test_addresses_know_their_family():
    child = WorkerAddress.from_name("g:1:2")
    assert child.get_parent_address() == WorkerAddress("g", (1,))
    assert child.get_parent_rank() == 1
    assert WorkerAddress.from_parent_name_rank("g:1", 2) == child
    assert (
        sorted([child, WorkerAddress("g", (0,)), WorkerAddress("a", (9,))])[0].get_name() == "a:9"
    )


def test_the_size_of_a_group_is_known_although_ranks_have_died():
    state = RegistryState()
    assert waits(state.group_size("g"))
    state.register(info("g:1", size=3))
    assert state.group_size("g") == 3
    state.died("g:1", "gone")
    assert state.group_size("g") == 3
