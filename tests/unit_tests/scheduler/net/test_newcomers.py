"""Strangers who connect and say nothing, or not enough, keep nobody out."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import socket
import threading

import pytest

from rlinf.scheduler.net import auth, newcomers, sockets
from rlinf.scheduler.net.certificate import RunTls
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Listener, connect
from rlinf.scheduler.registry.client import RegistryClient
from rlinf.scheduler.registry.server import RegistryServer
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

SECRET = b"s" * 32
TLS = RunTls(SECRET)
GREETING = 39
PLACES = newcomers.MOST - int(newcomers.KEPT * newcomers.MOST)
"""Of one origin that has not proved itself."""


@pytest.fixture
def patient(monkeypatch):
    """Nobody is sent away for saying nothing: room is made by those who come, or not at all."""
    monkeypatch.setattr(newcomers, "FIRST_PROOF_SECONDS", 3600.0)
    monkeypatch.setattr(newcomers, "PROOF_SECONDS", 3600.0)


@pytest.fixture(params=[None, TLS], ids=["plain", "tls"])
def listener(request):
    loop = IOLoop()
    admitted = threading.Semaphore(0)
    nobody = lambda *_: None  # noqa: E731
    listener = Listener(
        loop,
        ("tcp", "127.0.0.1", 0),
        SECRET,
        nobody,
        nobody,
        lambda _: admitted.release(),
        tls=request.param,
    )
    listener.admitted, listener.tls = admitted, request.param
    yield listener
    loop.call_soon(listener.close)
    loop.stop()


def strangers(address, count, at_end, says=b""):
    """Connects so often; returns when the listener has greeted all of them."""
    socks = []
    for _ in range(count):
        sock = at_end.enter_context(socket.create_connection(address[1:]))
        sock.settimeout(PROMPTLY)
        assert len(sock.recv(GREETING, socket.MSG_WAITALL)) == GREETING
        if says:
            sock.sendall(says)
        socks.append(sock)
    return socks


def join(listener):
    connection = connect(
        IOLoop(), listener.address, SECRET, {"name": "a"}, *[lambda *_: None] * 2, tls=listener.tls
    )
    assert listener.admitted.acquire(timeout=PROMPTLY)
    return connection


def hung_up(sock):
    """Whether the listener has ended the connection; waits for it."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(4096):
            pass
    return True


def is_open(sock):
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return bool(sock.recv(1))
    return True


def test_a_flood_of_silent_strangers_keeps_nobody_out(listener, patient):
    with contextlib.ExitStack() as at_end:
        before = threading.active_count()
        silent = strangers(listener.address, PLACES + 100, at_end)
        threads = threading.active_count() - before
        connection = join(listener)
        assert threads < newcomers.MOST, "a stranger that says nothing costs no thread"
        # The oldest made room, one for each that came when there was none.
        assert all(hung_up(sock) for sock in silent[:101])
        assert all(is_open(sock) for sock in silent[101:])
        connection.close()


@pytest.mark.parametrize("says", [b"\x16", b"\x16" * 31], ids=["one byte", "all but one"])
def test_strangers_who_stop_in_the_middle_keep_nobody_out(listener, patient, says):
    with contextlib.ExitStack() as at_end:
        talkers = strangers(listener.address, PLACES, at_end, says=says)
        wait_until(lambda: all(n.said for n in list(listener._newcomers._all)))
        connection = join(listener)
        assert hung_up(talkers[0]) and is_open(talkers[-1])
        connection.close()


def begin(listener, at_end):
    """Connects, gives the first proof, and stops."""
    sock = at_end.enter_context(socket.create_connection(listener.address[1:]))
    sock.settimeout(PROMPTLY)
    hello = auth.read_hello(sock, listener.tls is not None, "")
    sock.sendall(auth.first_proof(SECRET, hello.nonce))
    wait_until(lambda: any(n.proved for n in list(listener._newcomers._all)))
    return sock


def test_whoever_has_given_the_first_proof_does_not_make_room(listener, patient):
    with contextlib.ExitStack() as at_end:
        begun = begin(listener, at_end)
        silent = strangers(listener.address, PLACES + 20, at_end)
        assert all(hung_up(sock) for sock in silent[:21])
        assert is_open(begun)


@pytest.mark.parametrize("says", [b"", b"\x16"])
def test_whoever_has_no_first_proof_in_time_is_sent_away(listener, monkeypatch, says):
    monkeypatch.setattr(newcomers, "FIRST_PROOF_SECONDS", 0.0)
    with contextlib.ExitStack() as at_end:
        (sock,) = strangers(listener.address, 1, at_end, says=says)
        assert hung_up(sock)
    wait_until(lambda: not listener._newcomers._all)


def test_whoever_does_not_finish_in_time_is_sent_away(listener, patient, monkeypatch):
    with contextlib.ExitStack() as at_end:
        begun = begin(listener, at_end)
        monkeypatch.setattr(newcomers, "PROOF_SECONDS", 0.0)
        assert hung_up(begun)
    wait_until(lambda: not listener._newcomers._all)


def test_members_that_join_at_once_are_not_in_each_others_way(listener, patient, monkeypatch):
    monkeypatch.setattr(newcomers, "MOST", 4)
    monkeypatch.setattr(newcomers, "STRANGER_SECONDS", 3600.0)
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        # Each fails if it is sent away: nobody tries again here.
        for joined in [pool.submit(join, listener) for _ in range(40)]:
            joined.result().close()
    assert listener.refused == 0


def test_a_listener_that_closes_sends_all_away(listener, patient):
    with contextlib.ExitStack() as at_end:
        silent = strangers(listener.address, 3, at_end)
        listener._loop.call_soon(listener._newcomers.close)
        assert all(hung_up(sock) for sock in silent)


@pytest.mark.parametrize("tls", [None, TLS], ids=["plain", "tls"])
def test_a_member_joins_the_registry_in_a_flood(tls, patient):
    server = RegistryServer(SECRET, "127.0.0.1", tls=tls)
    with contextlib.ExitStack() as at_end:
        at_end.callback(server.close)
        strangers(server.addresses[1], newcomers.MOST + 50, at_end)
        client = RegistryClient(server.addresses, SECRET, "a:0", local=False, tls=tls)
        assert client.ask("groups") == []
        client.close()


def test_a_process_that_may_open_no_more_files_says_so_and_accepts_later(monkeypatch, capfd):
    monkeypatch.setattr(sockets, "_SHORT_SECONDS", 0.01)
    loop, admitted = IOLoop(), threading.Event()
    nobody = lambda *_: None  # noqa: E731
    listener = Listener(
        loop, ("tcp", "127.0.0.1", 0), SECRET, nobody, nobody, lambda _: admitted.set()
    )
    real, left = listener._sock, [3]

    class Short:
        """The listening socket, which cannot accept three times."""

        def __getattr__(self, name):
            return getattr(real, name)

        def accept(self):
            if left[0]:
                left[0] -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return real.accept()

    listener._sock = Short()
    connection = connect(loop, listener.address, SECRET, {"name": "a"}, nobody, nobody)
    assert admitted.wait(PROMPTLY) and left == [0]
    assert capfd.readouterr().err.count("Too many open files: nobody can connect") == 1
    connection.close()
    loop.call_soon(listener.close)
    loop.stop()
