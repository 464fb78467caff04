"""Encrypted connections: nothing is lost, nobody reads or changes what is sent."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.net import certificate
from rlinf.scheduler.net import sockets as net_sockets
from rlinf.scheduler.net.auth import AuthError, Hello, new_secret
from rlinf.scheduler.net.certificate import RunTls
from rlinf.scheduler.net.flushed import Flushed
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.sockets import Listener, answers, connect
from rlinf.scheduler.net.tls import TlsSocket
from tests.unit_tests.scheduler.net.test_net import Side, stalled_loop
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

SECRET = new_secret()
TLS = RunTls(SECRET)
TENSOR = 0
"""Buffers that a connection without TLS would not prove."""


class Relay:
    """Passes bytes on between a client and a listener, and keeps and changes what a test says.

    Attributes:
        seen: all that went to the listener.
        change: takes what is to go to the listener and returns what goes; None ends both sides.
    """

    def __init__(self, target):
        self._target = target
        self.seen = bytearray()
        self.change = lambda data: data
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = ("tcp", *self._server.getsockname())
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        near, _ = self._server.accept()
        far = socket.create_connection(self._target[1:])
        threading.Thread(target=self._back, args=(far, near), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                self.seen += data
                changed = self.change(data)
                if changed is None:
                    break
                far.sendall(changed)
        for sock in (near, far):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _back(far, near):
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                near.sendall(data)
            near.shutdown(socket.SHUT_RDWR)


class Ends:
    """A client and a listener, each with an I/O thread of its own."""

    def __init__(self, relayed=False, tls=TLS):
        self.server, self.client = Side(), Side()
        self.loops = IOLoop(), IOLoop()
        taken = (self.server.on_message, self.server.on_close, self.server.on_connect)
        self.listener = Listener(self.loops[0], ("tcp", "127.0.0.1", 0), SECRET, *taken, tls=tls)
        self.relay = Relay(self.listener.address) if relayed else None
        self.connection = connect(
            self.loops[1],
            self.relay.address if relayed else self.listener.address,
            SECRET,
            {"name": "client"},
            self.client.on_message,
            self.client.on_close,
            tls=tls,
        )
        assert self.server.connected.wait(PROMPTLY)

    def close(self):
        self.connection.close()
        assert self.server.closed.wait(PROMPTLY) and self.client.closed.wait(PROMPTLY)
        self.loops[0].call_soon(self.listener.close)
        for loop in self.loops:
            loop.stop()


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.close()


@pytest.fixture
def relayed():
    made = Ends(relayed=True)
    yield made
    made.close()


# -- what is sent arrives ---------------------------------------------------------------------


def test_all_sizes_arrive_in_both_directions_at_once_from_several_threads(ends):
    chance = random.Random(3)
    sizes = [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 1 << 20, (1 << 20) + 1, 20_000_000]
    sizes += [chance.randrange(70_000) for _ in range(200)]
    data = chance.randbytes(max(sizes))

    def send(connection, sender):
        order = random.Random(sender)
        for number, size in enumerate(order.sample(sizes, len(sizes))):
            connection.send(f"{sender} {number} {size}".encode(), [data[:size]], covered=TENSOR)

    sides = (ends.connection, ends.server), (ends.server.connection, ends.client)
    threads = [
        threading.Thread(target=send, args=(source, sender))
        for sender in range(2)
        for source, _ in sides
    ]
    for thread in threads:
        thread.start()
    for _, taker in sides:
        for _ in range(2 * len(sizes)):
            assert taker.arrived.acquire(timeout=PROMPTLY)
        numbers = {"0": [], "1": []}
        for meta, (taken,) in taker.messages:
            sender, number, size = meta.decode().split()
            numbers[sender].append(int(number))
            assert taken == data[: int(size)]
        assert numbers == {s: list(range(len(sizes))) for s in "01"}


def test_what_a_slow_reader_did_not_take_is_written_later(ends):
    flushed = [Flushed() for _ in range(40)]
    sent = []
    with stalled_loop(ends.loops[0]):
        for number, done in enumerate(flushed):
            buffers = [os.urandom(700_000), b"", os.urandom(number), os.urandom(30_000)]
            sent.append((b"%d" % number, buffers))
            ends.connection.send(b"%d" % number, buffers, done)
        assert not flushed[-1].is_set(), "the kernel has taken all: the test shows nothing"
    for _ in sent:
        assert ends.server.arrived.acquire(timeout=PROMPTLY)
    assert ends.server.messages == sent
    assert all(done.wait(PROMPTLY) and done.is_set() for done in flushed)


@pytest.fixture
def sockets():
    """Two ends without anything above them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    ends = (
        TlsSocket(client, TLS.client, server_side=False),
        TlsSocket(accepted, TLS.server, server_side=True),
    )
    shaking = threading.Thread(target=ends[1].handshake)
    shaking.start()
    ends[0].handshake()
    shaking.join()
    for end in ends:
        end.setblocking(False)
    yield ends
    for end in ends:
        end.close()


def receive(end, size):
    """What comes next; waits for it."""
    target = bytearray(size)
    count = None

    def came():
        nonlocal count
        with contextlib.suppress(BlockingIOError):
            count = end.recv_into(memoryview(target))
        return count is not None

    wait_until(came)
    return bytes(target[:count])


def test_what_was_decrypted_is_given_out_before_the_kernel_has_anything_new(sockets):
    near, far = sockets
    near.sendmsg([b"0123456789", b"abcdefghij"])
    assert receive(far, 10) == b"0123456789"
    # Nothing more comes from the kernel: the rest is in this process already.
    assert far.recv_into(memoryview(bytearray(6))) == 6
    assert far.recv_into(memoryview(bytearray(100))) == 4
    with pytest.raises(BlockingIOError):
        far.recv_into(memoryview(bytearray(100)))


def test_the_end_of_the_stream_is_told_every_time(sockets):
    near, far = sockets
    near.sendmsg([b"last"])
    near.shutdown(socket.SHUT_RDWR)
    assert receive(far, 100) == b"last"
    assert receive(far, 100) == b"" == receive(far, 100)


def test_what_has_arrived_before_a_shutdown_is_read_decrypted(sockets):
    near, far = sockets
    near.sendmsg([b"last words"])
    # It is there: the kernel has said so.
    wait_until(lambda: far._inner._sslobj and _has_bytes(far))
    far.shutdown(socket.SHUT_RDWR)
    assert receive(far, 100) == b"last words"


def test_what_has_arrived_is_read_although_writing_fails(sockets):
    near, far = sockets
    near.sendmsg([b"last words"])
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match=f"{near.getsockname()[1]} has closed the connection"):
        far.sendmsg([b"not any more"])
    assert receive(far, 100) == b"last words"


def _has_bytes(end):
    with socket.socket(fileno=os.dup(end.fileno())) as raw:
        with contextlib.suppress(BlockingIOError):
            return raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)


# -- strangers in between ---------------------------------------------------------------------


@pytest.mark.parametrize("tls", [None, TLS])
def test_nobody_in_between_can_read(tls):
    ends = Ends(relayed=True, tls=tls)
    ends.connection.send(b"meta of a message", [b"bytes of a tensor" * 100], covered=TENSOR)
    assert ends.server.arrived.acquire(timeout=PROMPTLY)
    ends.close()
    readable = [text in ends.relay.seen for text in (b"meta of a message", b"bytes of a tensor")]
    assert readable == ([True, True] if tls is None else [False, False])
    assert (b'"client"' in ends.relay.seen) == (tls is None)


@pytest.mark.parametrize("place", [0, 3, 5, 100, -1])
def test_a_flipped_bit_anywhere_ends_the_connection_and_names_the_peer(relayed, place):
    flipped = threading.Event()

    def flip(data):
        if flipped.is_set():
            return data
        flipped.set()
        changed = bytearray(data)
        changed[place] ^= 1
        return bytes(changed)

    relayed.relay.change = flip
    relayed.connection.send(b"meta", [b"tensor" * 100], covered=TENSOR)
    assert flipped.wait(PROMPTLY)
    # A longer record than was sent is waited for: its bytes are those of the next ones.
    with contextlib.suppress(ConnectionError):
        for _ in range(10):
            relayed.connection.send(b"more", [bytes(10_000)])
    assert relayed.server.closed.wait(PROMPTLY) and relayed.client.closed.wait(PROMPTLY)
    assert relayed.server.messages == []
    assert "what came from 127.0.0.1 port" in relayed.server.reason
    assert "is not what it sent" in relayed.server.reason


def test_a_record_that_comes_again_ends_the_connection(relayed):
    relayed.relay.change = lambda data: data + data
    relayed.connection.send(b"once")
    assert relayed.server.closed.wait(PROMPTLY)
    assert relayed.server.messages == [(b"once", [])]
    assert "is not what it sent: decryption failed" in relayed.server.reason


@pytest.mark.parametrize("after", [1, 2_000, 500_000])
def test_a_peer_that_dies_in_the_middle_of_a_message_is_noticed(relayed, after):
    passed = 0

    def cut(data):
        nonlocal passed
        passed += len(data)
        return data if passed < after else None

    relayed.relay.change = cut
    flushed = Flushed()
    with contextlib.suppress(ConnectionError):
        relayed.connection.send(b"meta", [bytes(30_000_000)], flushed)
    assert relayed.server.closed.wait(PROMPTLY) and relayed.client.closed.wait(PROMPTLY)
    assert relayed.server.messages == []
    assert not flushed.is_set()


# -- strangers who connect --------------------------------------------------------------------


def ask(listener, tls, secret=SECRET):
    connect(IOLoop(), listener.address, secret, {}, *([lambda *_: None] * 2), tls=tls)


def test_a_peer_with_the_certificate_of_another_run_is_refused(ends):
    with pytest.raises(AuthError, match="has a certificate that is not of this run"):
        ask(ends.listener, RunTls(new_secret()))
    wait_until(lambda: ends.listener.refused == 1)


def test_a_peer_without_a_certificate_is_refused(ends):
    bare = RunTls(SECRET)
    bare.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.client.check_hostname = False
    bare.client.verify_mode = ssl.CERT_NONE
    # Whether it reads or writes first decides what it hears.
    told = "closed the connection during the handshake|ended the encrypted connection.*certificate"
    with pytest.raises(ConnectionError, match=told):
        ask(ends.listener, bare)
    wait_until(lambda: ends.listener.refused == 1)


def test_an_older_version_of_tls_is_refused(ends):
    old = RunTls(SECRET)
    old.client.minimum_version = ssl.TLSVersion.TLSv1_2
    old.client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(AuthError, match=r"by TLS 1.3 \(.*protocol version.*this run is encrypted"):
        ask(ends.listener, old)
    wait_until(lambda: ends.listener.refused == 1)


def test_the_certificate_alone_does_not_admit(ends):
    # The secret is proved before TLS, and inside of it.
    with pytest.raises(AuthError):
        ask(ends.listener, TLS, new_secret())
    wait_until(lambda: ends.listener.refused == 1)


def test_a_plain_peer_is_told_that_the_run_is_encrypted(ends):
    with pytest.raises(ConnectionError, match="is encrypted, and this process is not: set cluster"):
        ask(ends.listener, None)


def test_an_encrypted_peer_does_not_talk_to_a_plain_listener():
    ends = Ends(tls=None)
    with pytest.raises(ConnectionError, match="this run is encrypted, and what listens at 127.0.0"):
        ask(ends.listener, TLS)
    ends.close()


def test_plain_bytes_to_an_encrypted_listener_are_refused(ends):
    with socket.create_connection(ends.listener.address[1:]) as sock:
        sock.settimeout(PROMPTLY)
        assert sock.recv(100)[:7] == Hello.new(True).to_bytes()[:7]
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(4096):
                pass
    wait_until(lambda: ends.listener.refused == 1)


def test_a_probe_is_encrypted_too(ends):
    assert answers(ends.listener.address, SECRET, "a", TLS)
    assert not answers(ends.listener.address, SECRET, "a")


def test_a_listener_that_is_reached_may_prove_itself_slowly(ends, monkeypatch):
    reached = threading.Event()
    handshake = TlsSocket.handshake

    def slow(self):
        if self._server_side:
            assert reached.wait(PROMPTLY), "told only after the proof"
            time.sleep(4 * net_sockets.REACH_SECONDS)
        handshake(self)

    monkeypatch.setattr(net_sockets, "REACH_SECONDS", 0.1)
    monkeypatch.setattr(TlsSocket, "handshake", slow)
    assert answers(ends.listener.address, SECRET, "a", TLS, reached.set)


def test_a_listener_that_proves_nothing_is_not_there(monkeypatch):
    monkeypatch.setattr(net_sockets, "ANSWER_SECONDS", 0.1)
    reached = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not answers(("tcp", *silent.getsockname()), SECRET, "a", TLS, reached.set)
    assert reached.is_set()


# -- the certificate --------------------------------------------------------------------------


def test_every_process_makes_the_same_certificate():
    program = (
        "from rlinf.scheduler.net.certificate import _make; import sys; "
        f"sys.stdout.buffer.write(b''.join(_make(bytes.fromhex({SECRET.hex()!r}))))"
    )
    made = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert made.stdout == b"".join(certificate._make(SECRET))
    assert certificate._make(new_secret()) != certificate._make(SECRET)


def test_an_interpreter_that_cannot_make_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ClusterError, match=f"the package cryptography, which {sys.executable}"):
        RunTls(SECRET)


def test_the_private_key_is_in_no_file_afterwards(monkeypatch):
    names = []
    load = ssl.SSLContext.load_cert_chain

    def watch(self, path):
        names.append(os.readlink(path))
        return load(self, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watch)
    RunTls(new_secret())
    assert names == ["/memfd:rlinf-certificate (deleted)"] * 2
    left = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _open(n)]
    assert not any("rlinf-certificate" in name for name in left)


def _open(number):
    return os.path.lexists(f"/proc/self/fd/{number}")
