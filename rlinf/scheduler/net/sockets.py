"""Connections between processes that know a common secret: listening for them, and making them."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from rlinf.scheduler.net import auth, forks
from rlinf.scheduler.net.connection import Connection, OnClose, OnMessage
from rlinf.scheduler.net.interrupts import interruptible
from rlinf.scheduler.net.link_watch import watch_for_silence
from rlinf.scheduler.net.loop import IOLoop
from rlinf.scheduler.net.seals import SealKeys

HANDSHAKE_SECONDS = 60.0
_MAX_HANDSHAKES = 256

Address = tuple[Any, ...]
"""("unix", name) for an abstract socket of this machine, or ("tcp", host, port)."""


class Listener:
    """Accepts peers that know the secret and hands each to `on_connect` as a connection.

    The handshake blocks, so each runs in a short thread of its own; a stranger is closed after its
    first wrong proof, or after a deadline if it says nothing.
    """

    def __init__(
        self,
        loop: IOLoop,
        address: Address,
        secret: bytes,
        on_message: OnMessage,
        on_close: OnClose,
        on_connect: Callable[[Connection], None] | None = None,
        on_probe: Callable[[dict[str, Any]], None] | None = None,
        ports: tuple[int, int] | None = None,
    ):
        self._loop = loop
        self._on_probe = on_probe
        self._secret = secret
        self._on_message = on_message
        self._on_close = on_close
        self._on_connect = on_connect
        self._slots = threading.BoundedSemaphore(_MAX_HANDSHAKES)
        self.refused = 0
        if address[0] == "unix":
            self._sock = forks.close_in_child(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._sock.bind("\0" + address[1])
            self.address: Address = address
        else:
            self._sock = forks.close_in_child(
                socket.socket(_family(address[1]), socket.SOCK_STREAM)
            )
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(self._sock, address, ports)
            self.address = ("tcp", address[1], self._sock.getsockname()[1])
        self._sock.listen(1024)
        self._sock.setblocking(False)
        loop.add(self)

    def fileno(self) -> int:
        """File descriptor of the listening socket."""
        return self._sock.fileno()

    def on_writable(self) -> None:
        """Listening sockets are never written."""

    def on_readable(self) -> None:
        """Accept what waits (I/O thread)."""
        while True:
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, OSError):
                return
            forks.close_in_child(sock)
            if not self._slots.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._admit, args=(sock,), daemon=True).start()

    def _admit(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(HANDSHAKE_SECONDS)
            _tune(sock)
            identity, keys = auth.admit(sock, self._secret)
        except (OSError, ValueError):
            self.refused += 1
            sock.close()
            return
        finally:
            self._slots.release()
        if identity.get("probe"):
            sock.close()
            if self._on_probe is not None:
                self._on_probe(identity)
            return
        connection = Connection(
            sock, self._loop, self._on_message, self._on_close, identity, _needed(sock, keys)
        )
        if self._on_connect is not None:
            self._on_connect(connection)
        connection.start()

    def close_in_child(self, reason: str) -> None:
        """Do nothing: the socket is closed with all others."""

    def close(self) -> None:
        """Stop accepting."""
        self._loop.remove(self)
        self._sock.close()


def connect(
    loop: IOLoop,
    address: Address,
    secret: bytes,
    identity: dict[str, Any],
    on_message: OnMessage,
    on_close: OnClose,
    timeout: float = HANDSHAKE_SECONDS,
    prepare: Callable[[Connection], None] | None = None,
) -> Connection:
    """Connect, prove the secret and start to receive.

    Args:
        loop: I/O thread that serves the connection.
        address: where to connect to.
        secret: secret of the run.
        identity: what to say of oneself.
        on_message: takes messages.
        on_close: is told the end.
        timeout: deadline of each step of the handshake, in seconds.
        prepare: called with the connection before it receives anything.

    Raises:
        ConnectionError: nobody listens there, or one of the sides does not know the secret.
        TimeoutError: no answer within `timeout` seconds.
    """
    sock, keys = _greeted(address, secret, identity, timeout)
    connection = Connection(
        sock, loop, on_message, on_close, {"address": address}, _needed(sock, keys)
    )
    if prepare is not None:
        prepare(connection)
    connection.start()
    return connection


def answers(address: Address, secret: bytes, name: str, timeout: float) -> bool:
    """Return whether a listener can be reached and knows the secret; it is told who asks."""
    try:
        _greeted(address, secret, {"name": name, "probe": True}, timeout)[0].close()
    except OSError:
        return False
    return True


def _greeted(
    address: Address, secret: bytes, identity: dict[str, Any], timeout: float
) -> tuple[socket.socket, SealKeys]:
    """Connect and prove the secret; return the socket and the keys of the connection."""
    if address[0] == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: Any = "\0" + address[1]
    else:
        sock = socket.socket(_family(address[1]), socket.SOCK_STREAM)
        target = (address[1], address[2])
    forks.close_in_child(sock)
    try:
        sock.settimeout(timeout)
        _reach(sock, target, timeout)
        _tune(sock)
        keys = interruptible(auth.greet, sock, secret, identity)
    except BaseException:
        sock.close()
        raise
    return sock, keys


def _needed(sock: socket.socket, keys: SealKeys) -> SealKeys | None:
    """Return the keys if somebody between the two could change what is sent."""
    return None if sock.family == socket.AF_UNIX else keys


def _reach(sock: socket.socket, target: Any, timeout: float) -> None:
    """Connect; errors name the address."""
    where = target if isinstance(target, str) else f"{target[0]} port {target[1]}"
    try:
        interruptible(sock.connect, target)
    except TimeoutError as error:
        raise TimeoutError(
            f"nobody answers at {where} within {timeout:g} s; a firewall may block "
            "it (cluster.port_range sets the ports, RLINF_COMM_NET_DEVICES the interface)"
        ) from error
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {where}") from error


def _bind(sock: socket.socket, address: Address, ports: tuple[int, int] | None) -> None:
    """Bind to a port, or to any free one of a range.

    Raises:
        OSError: none is free, or the address is not of this machine; says which.
    """
    host, port = address[1:]
    if ports is None or port:
        sock.bind((host, port))
        return
    allowed = range(ports[0], ports[1] + 1)
    # All processes of a node look for one at the same time.
    first = secrets.randbelow(len(allowed))
    for candidate in (*allowed[first:], *allowed[:first]):
        try:
            sock.bind((host, candidate))
            return
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise OSError(error.errno, f"{error.strerror}: {host}") from error
    raise OSError(
        errno.EADDRINUSE,
        f"no port of cluster.port_range {ports[0]}-{ports[1]} is free at {host}; use a wider range",
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _tune(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_for_silence(sock)
        # The kernel chooses the buffers of TCP: a size that is set is capped, and then kept.
        return
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
