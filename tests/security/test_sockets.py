"""Strangers who hold unfinished handshakes, and want a run not to start."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from rlinf.scheduler.net import auth, newcomers, sockets
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.newcomers import origin_of
from rlinf.scheduler.net.sockets import Listener, connect
from rlinf.scheduler.worker.ports import free_port
from tests.unit_tests.scheduler.waits import wait_until

SECRET = b"s" * 32
GREETING = 39
STRANGER = "127.0.0.2"
PATIENCE = 60.0
FOR_EVER = 3600.0


def nobody(*_):
    pass


@pytest.fixture
def listen():
    """Makes listeners; each has `admitted`, which counts who has joined."""
    loop = IOLoop()
    made = []

    def listen(address):
        admitted = threading.Semaphore(0)
        listener = Listener(loop, address, SECRET, nobody, nobody, lambda _: admitted.release())
        listener.admitted = admitted
        made.append(listener)
        return listener

    yield listen
    for listener in made:
        loop.call_soon(listener.close)
    loop.stop()


@pytest.fixture
def nobody_is_sent_away(monkeypatch):
    for name in ("FIRST_PROOF_SECONDS", "PROOF_SECONDS", "STRANGER_SECONDS"):
        monkeypatch.setattr(newcomers, name, FOR_EVER)


def join(listener):
    connection = connect(IOLoop(), listener.address, SECRET, {"name": "a"}, nobody, nobody)
    assert listener.admitted.acquire(timeout=PATIENCE)
    return connection


@pytest.fixture
def by_address(monkeypatch):
    """Lets addresses of the loopback device stand for hosts."""
    monkeypatch.setattr(sockets, "origin_of", lambda host: host)


def begin(address, at_end, says=b"\x16", source=STRANGER):
    """Connects from a stranger's address, and begins a proof that it never ends."""
    sock = socket.create_connection(address[1:], source_address=(source, 0))
    at_end.enter_context(sock)
    sock.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionError):
        sock.sendall(says)
    return sock


def hung_up(sock) -> bool:
    """Whether the listener has closed the connection by now."""
    sock.setblocking(False)
    try:
        while sock.recv(GREETING):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("source", [STRANGER, "127.0.0.1"], ids=["elsewhere", "a member's host"])
@pytest.mark.parametrize("says", [b"\x16", b"", b"\x16" * 31], ids=["begun", "silent", "nearly"])
def test_a_member_joins_while_a_stranger_holds_all_places(
    listen, nobody_is_sent_away, by_address, monkeypatch, says, source
):
    """Also while it comes back as often as it likes: there are many more than places."""
    # A member on a busy machine may need some time, too, before it counts as one.
    monkeypatch.setattr(newcomers, "STRANGER_SECONDS", 0.5)
    listener = listen(("tcp", "127.0.0.1", 0))
    with contextlib.ExitStack() as at_end:
        for _ in range(3 * newcomers.MOST):
            begin(listener.address, at_end, says, source)
        for _ in range(3):
            join(listener).close()


def test_places_are_kept_for_peers_that_have_proved_themselves(
    listen, nobody_is_sent_away, by_address
):
    listener = listen(("tcp", "127.0.0.1", 0))
    join(listener).close()
    with contextlib.ExitStack() as at_end:
        for _ in range(2 * newcomers.MOST):
            begin(listener.address, at_end)
        join(listener).close()


def test_one_host_with_many_addresses_is_one_origin():
    """Every local user has all of 127.0.0.0/8, and most hosts have 2^64 addresses of IPv6."""
    assert len(set(map(origin_of, ["127.0.0.1", "127.9.8.7", "::1"]))) == 1
    assert len(set(map(origin_of, ["2001:db8::1", "2001:db8::ffff:1", "2001:db8::2%eth0"]))) == 1
    assert len(set(map(origin_of, ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8:1::1"]))) == 4


@pytest.mark.parametrize(
    "says", [b"\x16" * 32, b"\xff" * 200, b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n"]
)
def test_a_wrong_first_proof_costs_no_thread_and_ends_the_connection(
    listen, nobody_is_sent_away, monkeypatch, says
):
    listener = listen(("tcp", "127.0.0.1", 0))
    monkeypatch.setattr(newcomers.threading, "Thread", None)
    with contextlib.ExitStack() as at_end:
        sock = begin(listener.address, at_end, says)
        wait_until(lambda: hung_up(sock))
    assert listener.refused == 1


def test_a_recorded_handshake_is_of_no_use(listen, nobody_is_sent_away):
    """Neither at the listener that it was meant for, nor at another one of the run."""
    said, listeners = [], [listen(("tcp", "127.0.0.1", 0)) for _ in range(2)]

    class Recorded(socket.socket):
        def sendall(self, data, *args):
            said.append(bytes(data))
            super().sendall(data, *args)

    with Recorded(socket.AF_INET) as sock:
        sock.connect(listeners[0].address[1:])
        hello = auth.read_hello(sock, False, "")
        sock.sendall(auth.first_proof(SECRET, hello.nonce))
        auth.greet(sock, SECRET, {"name": "a"}, hello)
        assert listeners[0].admitted.acquire(timeout=PATIENCE)
    with contextlib.ExitStack() as at_end:
        for listener in listeners:
            sock = begin(listener.address, at_end, b"".join(said))
            wait_until(lambda sock=sock: hung_up(sock))
            assert listener.refused == 1 and not listener.admitted.acquire(blocking=False)


def test_whoever_sends_byte_by_byte_has_one_deadline(listen, monkeypatch):
    monkeypatch.setattr(newcomers, "FIRST_PROOF_SECONDS", 0.5)
    listener = listen(("tcp", "127.0.0.1", 0))
    with contextlib.ExitStack() as at_end:
        sock = begin(listener.address, at_end, b"")
        assert len(sock.recv(GREETING, socket.MSG_WAITALL)) == GREETING
        deadline = time.monotonic() + PATIENCE
        with pytest.raises(ConnectionError):
            while time.monotonic() < deadline:
                sock.sendall(b"\x16")
                time.sleep(0.05)


def test_waiting_strangers_are_bounded(listen, nobody_is_sent_away, monkeypatch):
    monkeypatch.setattr(newcomers, "MOST", 8)
    monkeypatch.setattr(newcomers, "_MOST_WAITING", 16)
    listener = listen(("tcp", "127.0.0.1", 0))
    with contextlib.ExitStack() as at_end:
        socks = [begin(listener.address, at_end) for _ in range(100)]
        places = 8 - int(newcomers.KEPT * 8)
        wait_until(lambda: sum(map(hung_up, socks)) == 100 - places - 16)


FLOOD = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held, greeted = [], 0
for _ in range(600):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    sock.connect("\\0" + sys.argv[1])
    held.append(sock)
    try:
        sock.sendall(b"\\x16")
        greeted += bool(sock.recv(100))
    except OSError:
        pass
print(greeted, flush=True)
input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_other_users_get_no_place_at_a_socket_of_this_machine(listen, nobody_is_sent_away):
    name = f"rlinf-test-{os.getpid()}"
    listener = listen(("unix", name))
    flood = subprocess.Popen(
        [sys.executable, "-c", FLOOD, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        join(listener).close()
        assert flood.stdout.readline() == "0\n"
        assert listener.refused == 600
        join(listener).close()
    finally:
        flood.kill()
        flood.communicate()


STORE = """
import os, sys
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
from rlinf.scheduler.collective import group_store
store = group_store.of_workers()
print("ready", flush=True)
input()
"""


def test_the_store_of_a_group_listens_at_its_address_only():
    """It obeys whoever reaches it: torch's own would be open to the network."""
    port = free_port()
    store = subprocess.Popen(
        [sys.executable, "-c", STORE, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert store.stdout.readline() == "ready\n"
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
        # Another address of this machine, as all of its network's are.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((STRANGER, port), PATIENCE)
    finally:
        store.kill()
        store.communicate()
