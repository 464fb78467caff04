"""A stranger between two hosts cannot change, repeat or leave out what will be unpickled."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.seals import SIZE
from rlinf.scheduler.net.sockets import Listener, connect
from tests.unit_tests.scheduler.waits import PROMPTLY, wait_until

SECRET = b"s" * 32
HEAD = 24


class Stranger:
    """Relays a connection, and changes what goes to the listener once the handshake is over.

    Args:
        target: where connections lead to.
        change: takes a frame and returns the bytes to send in its place.
    """

    def __init__(self, target, change):
        self._target, self._change = target, change
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = ("tcp", *self._server.getsockname())
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        near, _ = self._server.accept()
        far = socket.create_connection(self._target[1:])
        threading.Thread(target=self._back, args=(far, near), daemon=True).start()
        with contextlib.suppress(OSError):
            # The first proof; then nonce, proof, length and identity of the client.
            far.sendall(near.recv(32, socket.MSG_WAITALL))
            hello = near.recv(32 + 32 + 2 + 4096)
            far.sendall(hello)
            while frame := near.recv(1 << 16):
                far.sendall(self._change(frame))
            # Another thread reads it: closing it alone would tell nobody.
            far.shutdown(socket.SHUT_RDWR)
        far.close()

    @staticmethod
    def _back(far, near):
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                near.sendall(data)
        near.close()


def exchange(change, buffers=(b"one", b"two"), covered=None, cut_off=False):
    """Returns what a listener takes of two messages, and why the connection ended, if it did."""
    got, closed = [], []
    listener = Listener(
        IOLoop(),
        ("tcp", "127.0.0.1", 0),
        SECRET,
        lambda c, meta, parts: got.append((meta, [bytes(p) for p in parts])),
        lambda c, reason: closed.append(reason),
    )
    stranger = Stranger(listener.address, change)
    ended = threading.Event()
    client = connect(
        IOLoop(),
        stranger.address,
        SECRET,
        {"name": "a"},
        lambda *_: None,
        lambda *_: ended.set(),
    )
    with contextlib.suppress(ConnectionError):
        client.send(b"meta", buffers, covered=covered)
    if not cut_off:
        wait_until(lambda: got or closed)
    client.close()
    wait_until(lambda: got or closed)
    ended.wait(PROMPTLY)
    listener.close()
    return got, closed


def flipped(place):
    def change(frame):
        changed = bytearray(frame)
        changed[place] ^= 1
        return bytes(changed)

    return change


def test_what_nobody_changes_arrives():
    assert exchange(lambda frame: frame)[0] == [(b"meta", [b"one", b"two"])]


@pytest.mark.parametrize("place", [0, 8, 16, 20, HEAD, HEAD + 4, HEAD + SIZE - 1])
def test_an_altered_head_is_refused_before_anything_else_is_read(place):
    got, closed = exchange(flipped(place))
    assert got == [] and "head is not what the peer wrote" in closed[0]


@pytest.mark.parametrize("place", [HEAD + SIZE, HEAD + SIZE + 16, HEAD + SIZE + 20, -1])
def test_altered_sizes_meta_and_buffers_are_refused(place):
    got, closed = exchange(flipped(place))
    assert got == [] and "not what the peer wrote" in closed[0]


def test_bytes_of_tensors_are_not_covered():
    got, _ = exchange(flipped(-1), covered=1)
    assert got[0][1] == [b"one", bytes([b"two"[0], b"two"[1], b"two"[2] ^ 1])]


def test_a_frame_that_comes_again_is_refused():
    got, closed = exchange(lambda frame: frame + frame)
    assert len(got) == 1
    wait_until(lambda: closed)
    assert "message 1 came where message 2 was due" in closed[0]


def test_a_frame_that_is_cut_off_is_not_taken():
    got, closed = exchange(lambda frame: frame[: HEAD + SIZE + 3], cut_off=True)
    assert got == [] and closed
