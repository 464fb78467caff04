"""Connections: framing, authentication, ends."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import signal
import socket
import threading

import pytest

from rlinf.scheduler.errors import CallCancelled
from rlinf.scheduler.net import interrupts, waker
from rlinf.scheduler.net.auth import AuthError, new_secret
from rlinf.scheduler.net.certificate import RunTls
from rlinf.scheduler.net.connection import Connection
from rlinf.scheduler.net.flushed import Flushed
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Listener, connect
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

SECRET = new_secret()
TLS = RunTls(SECRET)


class Side:
    """Collects what arrives."""

    def __init__(self):
        self.messages = []
        self.arrived = threading.Semaphore(0)
        self.closed = threading.Event()
        self.connection = None
        self.connected = threading.Event()

    def on_message(self, connection, meta, buffers):
        self.messages.append((meta, [bytes(b) for b in buffers]))
        self.arrived.release()

    def on_close(self, connection, reason):
        self.reason = reason
        self.closed.set()

    def on_connect(self, connection):
        self.connection = connection
        self.connected.set()


@pytest.fixture(params=["unix", "tcp", "tls"])
def pair(request):
    loop, server, client = IOLoop(), Side(), Side()
    name = f"rlinf-test-{secrets.token_hex(4)}"
    address = ("unix", name) if request.param == "unix" else ("tcp", "127.0.0.1", 0)
    tls = TLS if request.param == "tls" else None
    taken = (server.on_message, server.on_close, server.on_connect)
    listener = Listener(loop, address, SECRET, *taken, tls=tls)
    taken = (client.on_message, client.on_close)
    connection = connect(loop, listener.address, SECRET, {"name": "client"}, *taken, tls=tls)
    assert server.connected.wait(PROMPTLY)
    yield listener, connection, server, client
    loop.call_soon(listener.close)
    loop.stop()


def test_messages_of_all_sizes_arrive_whole_and_in_order(pair):
    _, connection, server, _ = pair
    sizes = [0, 1, 100, 65_000, 65_536, 70_000, 1_000_000, 5, 3_000_000, 0]
    sent = []
    for size in sizes:
        meta, buffers = os.urandom(size % 4000), [os.urandom(size), b"", os.urandom(7)]
        sent.append((meta, buffers))
        connection.send(meta, buffers)
    connection.send(b"x" * 200_000)
    for _ in range(len(sizes) + 1):
        assert server.arrived.acquire(timeout=PROMPTLY)
    assert server.messages == [*sent, (b"x" * 200_000, [])]


@pytest.mark.parametrize("count", [8191, 8192, 20_000])
def test_a_message_may_have_any_number_of_buffers(pair, count):
    _, connection, server, _ = pair
    buffers = [i.to_bytes(4, "little") * (i % 5) for i in range(count)]
    connection.send(b"many", buffers)
    connection.send(b"next")
    for _ in range(2):
        assert server.arrived.acquire(timeout=PROMPTLY)
    assert server.messages == [(b"many", buffers), (b"next", [])]


def test_a_buffer_list_larger_than_the_kernel_takes_is_written_later(pair):
    _, connection, server, _ = pair
    flushed, buffers = Flushed(), [os.urandom(3000)] * 20_000
    connection.send(b"many", buffers, flushed)
    connection.send(b"next")
    for _ in range(2):
        assert server.arrived.acquire(timeout=PROMPTLY)
    assert flushed.wait(PROMPTLY) and flushed.is_set()
    assert server.messages == [(b"many", buffers), (b"next", [])]


def test_a_message_out_of_turn_ends_the_connection(pair):
    _, connection, server, client = pair
    connection.send(b"first")
    connection.numbers.sent += 1
    connection.send(b"third")
    assert server.closed.wait(PROMPTLY) and client.closed.wait(PROMPTLY)
    assert server.messages == [(b"first", [])]
    assert server.reason == "reading failed: message 3 came where message 2 was due"


def test_a_message_that_could_not_be_written_is_not_reported_as_sent(pair):
    _, connection, server, client = pair
    flushed = Flushed()
    server.connection.close()
    assert client.closed.wait(PROMPTLY)
    with pytest.raises(ConnectionError):
        connection.send(b"lost", [], flushed)
    assert not flushed.is_set()


def test_a_write_that_fails_is_told_at_once_and_what_came_is_still_read(pair):
    _, connection, server, client = pair
    failure = OSError("no route to host")
    with stalled_loop(connection._loop):
        server.connection.send(b"last words")
        connection.sock = Failing(connection.sock, failure)
        with pytest.raises(ConnectionError, match="writing failed: no route to host"):
            connection.send(b"lost")
        with pytest.raises(ConnectionError, match="writing failed: no route to host"):
            connection.send(b"lost, too")
    assert client.closed.wait(PROMPTLY)
    assert client.messages == [(b"last words", [])]
    assert client.reason == "writing failed: no route to host"


class Failing:
    """A socket that can read, but not write any more."""

    def __init__(self, sock, failure):
        self._sock, self._failure = sock, failure

    def sendmsg(self, *args):
        raise self._failure

    def __getattr__(self, name):
        return getattr(self._sock, name)


@contextlib.contextmanager
def stalled_loop(loop):
    stands, goes_on = threading.Event(), threading.Event()
    loop.call_soon(lambda: (stands.set(), goes_on.wait(PROMPTLY)))
    assert stands.wait(PROMPTLY)
    try:
        yield
    finally:
        goes_on.set()


def test_many_threads_may_send_at_once(pair):
    _, connection, server, _ = pair

    def send(number):
        for i in range(200):
            connection.send(pickle.dumps((number, i)), [bytes([number]) * (i * 37)])

    threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    [t.start() for t in threads]
    for _ in range(800):
        assert server.arrived.acquire(timeout=PROMPTLY)
    order = {n: [] for n in range(4)}
    for meta, (buffer,) in server.messages:
        number, i = pickle.loads(meta)
        assert buffer == bytes([number]) * (i * 37)
        order[number].append(i)
    assert all(indices == list(range(200)) for indices in order.values())


def test_both_directions_and_the_peers_identity(pair):
    _, _, server, client = pair
    assert server.connection.identity == {"name": "client"}
    server.connection.send(b"hello")
    assert client.arrived.acquire(timeout=PROMPTLY)
    assert client.messages == [(b"hello", [])]


def test_flushed_tells_when_a_buffer_may_change(pair):
    _, connection, server, _ = pair
    flushed, data = Flushed(), bytearray(os.urandom(20_000_000))
    copy = bytes(data)
    connection.send(b"m", [data], flushed)
    assert flushed.wait(PROMPTLY)
    data[:] = bytes(len(data))
    assert server.arrived.acquire(timeout=PROMPTLY)
    assert server.messages[0][1][0] == copy


def test_the_end_of_a_peer_is_noticed_at_once(pair):
    _, connection, server, client = pair
    connection.close()
    assert server.closed.wait(PROMPTLY)
    assert client.closed.wait(PROMPTLY)
    with pytest.raises(ConnectionError):
        connection.send(b"x")


def test_a_peer_with_another_secret_is_refused(pair):
    listener, _, server, _ = pair
    side, other = Side(), new_secret()
    tls = RunTls(other) if listener._tls else None
    taken = (side.on_message, side.on_close)
    with pytest.raises(AuthError):
        connect(IOLoop(), listener.address, other, {}, *taken, tls=tls)
    wait_until(lambda: listener.refused == 1)
    assert server.messages == []


class Exploit:
    """Leaves a trace if it is ever unpickled."""

    fired = False

    def __reduce__(self):
        return setattr, (Exploit, "fired", True)


@pytest.mark.parametrize("pair", ["tcp", "tls"], indirect=True)
def test_a_strangers_bytes_are_never_deserialised(pair):
    listener, _, server, _ = pair
    payload = pickle.dumps(Exploit())
    attempts = [
        payload,
        os.urandom(4096),
        b"\0" * 64 + (0xFFFF).to_bytes(2, "little"),
        os.urandom(64) + (20).to_bytes(2, "little") + payload,
        b"",
    ]
    for attempt in attempts:
        with socket.create_connection(listener.address[1:]) as sock:
            sock.settimeout(PROMPTLY)
            received = b""
            try:
                sock.sendall(attempt)
                sock.shutdown(socket.SHUT_WR)
                while chunk := sock.recv(4096):
                    received += chunk
            except OSError:
                # It hung up already, which is as good.
                pass
        greeting, alert = 39, 7 if listener._tls else 0
        assert len(received) <= greeting + alert, "a stranger learns nothing else"
    wait_until(lambda: listener.refused == len(attempts))
    assert not Exploit.fired
    assert server.messages == []


def test_a_silent_stranger_does_not_block_others(pair):
    listener, _, server, client = pair
    if listener.address[0] != "tcp":
        pytest.skip("one kind of socket is enough")
    with socket.create_connection(listener.address[1:]):
        side = Side()
        taken = (side.on_message, side.on_close)
        other = connect(
            IOLoop(), listener.address, SECRET, {"name": "b"}, *taken, tls=listener._tls
        )
        other.send(b"through")
        assert server.arrived.acquire(timeout=PROMPTLY)


@pytest.mark.parametrize("pair", ["tcp", "tls"], indirect=True)
def test_the_kernel_gives_up_only_peers_that_are_known_to_have_ended(pair):
    _, connection, server, _ = pair

    def option(sock, name):
        return sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))

    for sock in (connection.sock, server.connection.sock):
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option(sock, "TCP_KEEPIDLE") + option(sock, "TCP_KEEPINTVL") < 4
        assert option(sock, "TCP_KEEPCNT") * option(sock, "TCP_KEEPINTVL") > 60
        assert option(sock, "TCP_USER_TIMEOUT") == 0, "the kernel would end it if nobody reads"
    connection.expire()
    assert option(connection.sock, "TCP_USER_TIMEOUT") == 1000, "its peer is known to have ended"


# -- signals --------------------------------------------------------------------------------


@pytest.fixture
def cancel_signal():
    """A signal that raises in the main thread when that does no harm."""

    def cancel(signum, frame):
        interrupts.interrupt(CallCancelled("cancelled"), signum)

    before = signal.signal(signal.SIGUSR1, cancel)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


class Signalling:
    """A socket or loop in one of whose methods a signal comes, once, when its work is done."""

    def __init__(self, wrapped, method, signum, skip=0):
        self._wrapped, self._method, self._signum, self._skip = wrapped, method, signum, skip

    def __getattr__(self, name):
        method = getattr(self._wrapped, name)
        if name != self._method:
            return method

        def call(*args):
            outcome = method(*args)
            self._skip -= 1
            if self._skip == -1:
                signal.raise_signal(self._signum)
            return outcome

        return call


@pytest.mark.parametrize(
    "place, method, skip",
    [("sock", "recv_into", 0), ("sock", "recv_into", 1), ("_loop", "modify", 0)],
)
def test_a_signal_while_the_main_thread_reads_loses_no_message(
    pair, cancel_signal, place, method, skip
):
    _, connection, server, client = pair
    setattr(connection, place, Signalling(getattr(connection, place), method, cancel_signal, skip))
    body, over = os.urandom(5_000_000), threading.Event()

    def send():
        # From then on the main thread reads, and nobody else.
        wait_until(lambda: connection._borrowed or over.is_set())
        server.connection.send(b"first", [body])

    sending = threading.Thread(target=send)
    sending.start()
    with pytest.raises(CallCancelled):
        connection.read_until(lambda: False, waker.of_main_thread(), PROMPTLY)
    over.set()
    sending.join()
    server.connection.send(b"second")
    for _ in range(2):
        assert client.arrived.acquire(timeout=PROMPTLY)
    assert client.messages == [(b"first", [body]), (b"second", [])]


def test_a_signal_while_the_main_thread_stops_to_read_leaves_it_to_others(pair, cancel_signal):
    _, connection, server, client = pair
    # The second change of what is watched is at the end.
    connection._loop = Signalling(connection._loop, "modify", cancel_signal, skip=1)
    with pytest.raises(CallCancelled):
        connection.read_until(lambda: True, waker.of_main_thread(), PROMPTLY)
        threading.Event().wait(PROMPTLY)
    assert not connection._borrowed and not connection._reading.locked()
    server.connection.send(b"first")
    server.connection.send(b"second")
    for _ in range(2):
        assert client.arrived.acquire(timeout=PROMPTLY)


def test_a_signal_while_the_main_thread_writes_tears_no_message(pair, cancel_signal):
    _, connection, server, _ = pair
    connection.sock = Signalling(connection.sock, "sendmsg", cancel_signal)
    body = os.urandom(20_000_000)
    with pytest.raises(CallCancelled):
        connection.send(b"first", [body])
        threading.Event().wait(PROMPTLY)
    connection.send(b"second")
    for _ in range(2):
        assert server.arrived.acquire(timeout=PROMPTLY)
    assert server.messages == [(b"first", [body]), (b"second", [])]


def test_a_signal_in_the_users_code_raises_at_once(cancel_signal):
    with pytest.raises(CallCancelled):
        signal.raise_signal(cancel_signal)


def test_the_interrupt_key_takes_the_same_way(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(waker, "_waker", None)
        waker.of_main_thread()
        assert signal.getsignal(signal.SIGINT) is interrupts._on_interrupt_key
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_was_sent_before_a_connection_starts_is_written():
    """Another thread may find a connection that is just being made."""
    loop, side = IOLoop(), Side()
    mine, theirs = socket.socketpair()
    connection = Connection(mine, loop, side.on_message, side.on_close, {})
    body = bytes(8 << 20)
    connection.send(b"meta", [body])
    assert connection._pending, "the kernel has not taken all of it"
    connection.start()
    theirs.settimeout(PROMPTLY)
    left = connection.sent_bytes
    while left:
        left -= len(theirs.recv(1 << 20))
    loop.stop()
    mine.close()
    theirs.close()
