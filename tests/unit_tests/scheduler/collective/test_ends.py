"""Peers that end, or are slow, at inconvenient moments; in a run inside this process."""

from __future__ import annotations

import pytest

from rlinf.scheduler import WorkerDied
from rlinf.scheduler.collective import peer_connections
from tests.unit_tests.scheduler.small_run import in_thread, stalled
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until


def test_an_end_right_after_the_registry_said_that_the_peer_lives_is_not_forgotten(
    small_run, monkeypatch
):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    ask = here.registry.ask

    def ask_and_then_it_dies(operation, **kwargs):
        answer = ask(operation, **kwargs)
        if operation == "lookup":
            small_run.kill(there)
        return answer

    monkeypatch.setattr(here.registry, "ask", ask_and_then_it_dies)
    with pytest.raises(WorkerDied, match="there:0"):
        here.mailbox.send("there:0", "hello").wait()
    with pytest.raises(WorkerDied, match="there:0"):
        here.mailbox.recv("there:0").wait(timeout=PROMPTLY)


def test_an_end_just_when_a_connection_is_made_is_not_forgotten(small_run, monkeypatch):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    connect = peer_connections.connect

    def connect_and_then_it_dies(*args, **kwargs):
        connection = connect(*args, **kwargs)
        small_run.kill(there)
        wait_until(lambda: connection.closed)
        return connection

    monkeypatch.setattr(peer_connections, "connect", connect_and_then_it_dies)
    waiting = here.mailbox.recv("there:0")
    with pytest.raises(WorkerDied, match="there:0"):
        here.mailbox.send("there:0", "hello").wait()
    with pytest.raises(WorkerDied, match="there:0"):
        in_thread(waiting.wait).wait()


def test_what_a_peer_sent_before_it_died_arrives_although_it_was_admitted_late(
    small_run, monkeypatch
):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    with monkeypatch.context() as patch:
        admit = here.endpoint._listeners[0]._on_connect

        def admit_late(connection):
            wait_until(lambda: here.endpoint.gone("there:0"))
            admit(connection)

        patch.setattr(here.endpoint._listeners[0], "_on_connect", admit_late)
        there.mailbox.send("here:0", "last words").wait()
        small_run.kill(there)
        wait_until(lambda: here.mailbox._queues)
    assert here.mailbox.recv("there:0").wait(timeout=PROMPTLY) == "last words"
    with pytest.raises(WorkerDied, match="there:0"):
        here.mailbox.recv("there:0").wait(timeout=PROMPTLY)


def test_a_peer_that_is_slow_to_take_a_connection_is_not_dead(small_run, monkeypatch):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    connect, failures = peer_connections.connect, [TimeoutError("slow"), ConnectionResetError("no")]

    def connect_at_last(*args, **kwargs):
        if failures:
            raise failures.pop()
        return connect(*args, **kwargs)

    monkeypatch.setattr(peer_connections, "connect", connect_at_last)
    here.mailbox.send("there:0", "hello").wait()
    assert not failures
    assert there.mailbox.recv("here:0").wait(timeout=PROMPTLY) == "hello"


def test_the_next_one_of_the_name_is_reached_and_heard(small_run):
    here = small_run.join("here:0")
    for number in range(2):
        there = small_run.join("there:0")
        there.mailbox.send("here:0", number).wait()
        assert here.mailbox.recv("there:0").wait(timeout=PROMPTLY) == number
        here.mailbox.send("there:0", number).wait()
        assert there.mailbox.recv("here:0").wait(timeout=PROMPTLY) == number
        small_run.kill(there)
        here.registry.dead.clear()


def test_a_message_that_comes_when_its_receive_is_given_up_is_the_next_one_again(small_run):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    works = [here.mailbox.recv("there:0") for _ in range(2)]
    for number in range(3):
        there.mailbox.send("here:0", number).wait()
    wait_until(lambda: works[1].done())
    works[0].abandon()
    assert [here.mailbox.recv("there:0").wait(timeout=PROMPTLY) for _ in range(2)] == [0, 2]
    assert works[1].wait() == 1
    assert here.mailbox.traffic()["received"]["there:0"]["items"] == 3


def test_a_message_that_could_not_be_sent_leaves_room_for_others(small_run, monkeypatch):
    here, there = small_run.join("here:0"), small_run.join("there:0")

    def no_memory(*args):
        raise MemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(here.endpoint, "pack_for", no_memory)
        with pytest.raises(MemoryError):
            here.mailbox.send("there:0", "lost")
    window = here.mailbox._windows["there:0"]
    assert (window.items, window.bytes) == (0, 0)
    here.mailbox.send("there:0", "hello").wait()
    assert there.mailbox.recv("here:0").wait(timeout=PROMPTLY) == "hello"


def test_a_stalled_peer_is_waited_for(small_run):
    here, there = small_run.join("here:0"), small_run.join("there:0")
    with stalled(there):
        sending = in_thread(lambda: here.mailbox.send("there:0", "hello").wait())
    sending.wait()
    assert there.mailbox.recv("here:0").wait(timeout=PROMPTLY) == "hello"
