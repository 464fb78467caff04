"""A host that is silent for too long is told once, with all connections to it; others are left."""

from __future__ import annotations

import queue
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from rlinf.scheduler.net import link_watch
from rlinf.scheduler.net.link_watch import GRACE_SECONDS, LinkWatch, silence, watch_for_silence


class Peer:
    """A connection of which the kernel has heard nothing for some time."""

    def __init__(self, host: str, quiet: float):
        self.closed = None
        self.quiet = quiet
        self.sock = SimpleNamespace(
            family=socket.AF_INET,
            owner=self,
            getsockname=lambda: ("10.0.0.1", 1),
            getpeername=lambda: (host, 2),
        )


@pytest.fixture
def told(monkeypatch):
    """What watches have told; looks are quick, and silence is what a peer says."""
    monkeypatch.setattr(link_watch, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(link_watch, "silence", lambda sock: sock.owner.quiet)
    return queue.Queue()


def start(told, *peers, **options) -> LinkWatch:
    def on_silent(connections, reason):
        for connection in connections:
            connection.closed = reason
        told.put((connections, reason))

    watch = LinkWatch(10.0, on_silent, **options)
    for peer in peers:
        watch.add(peer)
    return watch


def test_all_connections_to_a_silent_host_are_told_together(told):
    gone = [Peer("10.0.0.2", 10.1 + GRACE_SECONDS), Peer("10.0.0.2", 9.0)]
    there = [Peer("10.0.0.2", 0.5), Peer("10.0.0.3", 10.0)]
    watch = start(told, *gone, *there)
    connections, reason = told.get(timeout=30)
    watch.stop()
    assert set(connections) == set(gone)
    assert reason == f"10.0.0.1 has heard nothing from 10.0.0.2 for {10.1 + GRACE_SECONDS:.1f} s"
    assert told.empty()


def test_a_link_that_a_new_connection_shows_to_work_is_not_lost(told):
    asked = queue.Queue()
    slow = Peer("10.0.0.2", 100.0)
    lost = Peer("10.0.0.3", 100.0)

    def probe(connection, on_reached):
        asked.put(connection)
        return connection is slow

    watch = start(told, slow, lost, probe=probe)
    connections, _ = told.get(timeout=30)
    assert connections == [lost]
    while asked.get(timeout=30) is not slow:
        pass
    watch.stop()
    assert slow.closed is None and told.empty()


@pytest.mark.parametrize("proved", [True, False])
def test_a_peer_that_was_reached_has_time_to_prove_itself(told, proved):
    reached, proof = threading.Event(), threading.Event()
    busy, lost = Peer("10.0.0.2", 100.0), Peer("10.0.0.3", 100.0)

    def probe(connection, on_reached):
        if connection is not busy:
            return not reached.wait(30)
        on_reached()
        reached.set()
        return proof.wait(30) and proved

    watch = start(told, busy, lost, probe=probe)
    assert told.get(timeout=30)[0] == [lost], "one link has waited for another"
    assert busy.closed is None
    proof.set()
    if not proved:
        assert told.get(timeout=30)[0] == [busy]
    else:
        later = Peer("10.0.0.4", 100.0)
        watch.add(later)
        assert told.get(timeout=30)[0] == [later]
    watch.stop()
    assert told.empty()


def test_a_probe_of_before_a_pause_says_nothing(told, monkeypatch):
    """A process that was suspended asks again before it gives a peer up."""
    peer, other = Peer("10.0.0.2", 100.0), Peer("10.0.0.3", 100.0)
    asked = queue.Queue()

    def probe(connection, on_reached):
        asked.put(connection)
        return connection is peer

    watch = start(told, probe=probe)
    link = (peer.sock.getsockname()[0], peer.sock.getpeername()[0])
    watch._failed[link] = time.monotonic() - 2 * link_watch._RECENT_SECONDS
    watch.add(peer)
    assert asked.get(timeout=30) is peer
    watch.add(other)
    assert told.get(timeout=30)[0] == [other]
    watch.stop()
    assert peer.closed is None and told.empty()


def test_what_is_heard_otherwise_counts(told):
    peer, lost = Peer("10.0.0.2", 100.0), Peer("10.0.0.3", 100.0)
    watch = LinkWatch(10.0, lambda connections, reason: told.put(connections))
    watch.heard(peer)
    watch.add(peer)
    watch.add(lost)
    assert told.get(timeout=30) == [lost]
    watch.stop()


def test_connections_within_a_machine_are_not_watched(told):
    a, b = socket.socketpair()
    with a, b:
        watch = start(told, SimpleNamespace(sock=a, closed=None))
        assert watch._thread is None


def test_the_kernel_tells_the_silence_of_a_peer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as near, server.accept()[0] as far:
            watch_for_silence(near)
            far.sendall(b"x")
            near.recv(1)
            first = silence(near)
            time.sleep(0.3)
            assert first + 0.2 < silence(near) < first + 30
            far.sendall(b"x")
            near.recv(1)
            assert silence(near) < 0.3
