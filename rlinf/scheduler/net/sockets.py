"""Connections between processes that know a common secret: listening for them, and making them."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlinf.scheduler.net import auth, forks
from rlinf.scheduler.net.binding import bind, family
from rlinf.scheduler.net.connection import Connection, OnClose, OnMessage
from rlinf.scheduler.net.interrupts import interruptible
from rlinf.scheduler.net.link_watch import watch_for_silence
from rlinf.scheduler.net.loop import READ, IOLoop
from rlinf.scheduler.net.newcomers import PROOF_SECONDS, Newcomer, Newcomers, origin_of
from rlinf.scheduler.net.seals import SealKeys

if TYPE_CHECKING:
    from rlinf.scheduler.net.certificate import RunTls
    from rlinf.scheduler.net.tls import TlsSocket

HANDSHAKE_SECONDS = PROOF_SECONDS
REACH_SECONDS = 1.0
"""Until a probe that has not reached its listener is given up; the next one follows soon."""
ANSWER_SECONDS = 10.0
"""For the proof of a listener that a probe has reached; a busy process is slow."""
_AT_ONCE = 64
"""Peers accepted before what others have said is looked at."""
_ROOT = 0
_CREDENTIALS = struct.Struct("3i")
_SHORT_SECONDS = 1.0
"""Until a process that is short of files looks again."""

Address = tuple[Any, ...]
"""("unix", name) for an abstract socket of this machine, or ("tcp", host, port)."""


class Listener:
    """Accepts peers that know the secret and hands each to `on_connect` as a connection.

    The handshake blocks, so each runs in a short thread of its own, once the peer's first proof is
    right; a stranger is closed after its first wrong proof, or after a deadline if it has none.

    Args:
        loop: I/O thread that serves listener and connections.
        address: where to listen.
        secret: secret of the run.
        on_message: takes messages.
        on_close: is told the end of a connection.
        on_connect: takes connections before they receive anything.
        on_probe: told the identity of whoever has only asked whether this can be reached.
        ports: (lowest, highest) port to listen on; None is any.
        tls: of an encrypted run; connections within a machine are not encrypted.

    Attributes:
        address: where it listens.
        refused: how many have failed to prove that they belong to the run.
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
        tls: RunTls | None = None,
    ):
        self._loop = loop
        self._on_probe = on_probe
        self._secret = secret
        self._on_message = on_message
        self._on_close = on_close
        self._on_connect = on_connect
        self._tls = tls if address[0] == "tcp" else None
        self._newcomers = Newcomers(loop, self._greet, self._recognise, self._admit)
        self.refused = 0
        self._told = False
        if address[0] == "unix":
            self._sock = forks.close_in_child(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._sock.bind("\0" + address[1])
            self.address: Address = address
        else:
            self._sock = forks.close_in_child(socket.socket(family(address[1]), socket.SOCK_STREAM))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bind(self._sock, *address[1:], ports)
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
        """Accept some of those who wait (I/O thread)."""
        for _ in range(_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            forks.close_in_child(sock)
            if sock.family == socket.AF_UNIX:
                origin = _user_of(sock)
                if origin not in (os.geteuid(), _ROOT):
                    # The run's processes on this machine are of one user; others get no place.
                    self.refused += 1
                    sock.close()
                    continue
            else:
                origin = origin_of(address[0])
            self._newcomers.add(sock, origin)

    def _greet(self, sock: socket.socket) -> bytes | None:
        """Say the first words to a peer; return the nonce, or None if it has gone (I/O thread)."""
        hello = auth.Hello.new(self._tls is not None)
        try:
            _tune(sock)
            # Fits into what the kernel buffers of a new connection.
            sock.setblocking(False)
            sock.sendall(hello.to_bytes())
        except OSError:
            self.refused += 1
            sock.close()
            return None
        return hello.nonce

    def _recognise(self, newcomer: Newcomer) -> bool:
        """Return whether the first proof of a peer is right (I/O thread)."""
        right = auth.is_first_proof(newcomer.said, self._secret, newcomer.nonce)
        self.refused += not right
        return right

    def _pause(self, seconds: float) -> None:
        """Accept nobody for a while; they wait in the kernel."""
        self._loop.modify(self, 0)
        self._loop.call_later(seconds, lambda: self._loop.modify(self, READ))

    def _cannot_accept(self, error: OSError) -> None:
        """Say once what is missing, and try again: it may be there later."""
        if not self._told:
            self._told = True
            print(
                f"warning: {error.strerror}: nobody can connect to this process until some of its "
                "files or connections are closed, or its limit is raised (ulimit -n)",
                file=sys.stderr,
                flush=True,
            )
        self._pause(_SHORT_SECONDS)

    def _admit(self, newcomer: Newcomer) -> None:
        try:
            newcomer.sock.settimeout(HANDSHAKE_SECONDS)
            if self._tls is not None:
                newcomer.sock = _encrypted(newcomer.sock, self._tls.server, server_side=True)
                newcomer.sock.handshake()
            identity, keys = auth.admit(newcomer.sock, self._secret, newcomer.nonce)
            self._newcomers.keep(newcomer)
        except (OSError, ValueError):
            self.refused += 1
            newcomer.sock.close()
            return
        sock = newcomer.sock
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
        """Stop accepting (I/O thread)."""
        self._newcomers.close()
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
    tls: RunTls | None = None,
) -> Connection:
    """Connect, prove the secret and start to receive.

    Args:
        loop: I/O thread that serves the connection.
        address: where to connect to.
        secret: secret of the run.
        identity: what to say of oneself.
        on_message: takes messages.
        on_close: is told the end.
        timeout: deadline of the whole handshake, in seconds.
        prepare: called with the connection before it receives anything.
        tls: of an encrypted run; connections within a machine are not encrypted.

    Raises:
        ConnectionError: nobody listens there, one of the sides does not know the secret, or one of
            them encrypts and the other does not.
        TimeoutError: no answer within `timeout` seconds.
    """
    sock, keys = _greeted(address, secret, identity, timeout, tls)
    connection = Connection(
        sock, loop, on_message, on_close, {"address": address}, _needed(sock, keys)
    )
    if prepare is not None:
        prepare(connection)
    connection.start()
    return connection


def answers(
    address: Address,
    secret: bytes,
    name: str,
    tls: RunTls | None = None,
    on_reached: Callable[[], None] | None = None,
) -> bool:
    """Return whether a listener can be reached and knows the secret; it is told who asks.

    Args:
        address: where it should listen.
        secret: secret of the run.
        name: who asks.
        tls: of an encrypted run.
        on_reached: called once it is reached, within `REACH_SECONDS`; its proof comes later.
    """
    identity = {"name": name, "probe": True}
    try:
        sock, _ = _greeted(
            address, secret, identity, ANSWER_SECONDS, tls, REACH_SECONDS, on_reached
        )
        sock.close()
    except OSError:
        return False
    return True


def _greeted(
    address: Address,
    secret: bytes,
    identity: dict[str, Any],
    timeout: float,
    tls: RunTls | None,
    reach_timeout: float | None = None,
    on_reached: Callable[[], None] | None = None,
) -> tuple[socket.socket | TlsSocket, SealKeys]:
    """Connect and prove the secret; return the socket and the keys of the connection.

    `reach_timeout` is that of the first step, if it has one of its own.
    """
    sock: socket.socket | TlsSocket
    if address[0] == "unix":
        tls = None
        sock = plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: Any = "\0" + address[1]
    else:
        sock = plain = socket.socket(family(address[1]), socket.SOCK_STREAM)
        target = (address[1], address[2])
    forks.close_in_child(plain)
    begin = time.monotonic()
    try:
        _reach(plain, target, timeout if reach_timeout is None else reach_timeout)
        if on_reached is not None:
            on_reached()
        end = (begin if reach_timeout is None else time.monotonic()) + timeout
        _tune(plain)
        plain.settimeout(_left(end, target))
        hello = interruptible(auth.read_hello, plain, tls is not None, _words(target))
        interruptible(plain.sendall, auth.first_proof(secret, hello.nonce))
        if tls is not None:
            sock = encrypted = _encrypted(plain, tls.client, server_side=False)
            sock.settimeout(_left(end, target))
            interruptible(encrypted.handshake)
        sock.settimeout(_left(end, target))
        keys = interruptible(auth.greet, sock, secret, identity, hello)
    except (BrokenPipeError, ConnectionResetError) as error:
        sock.close()
        raise auth.AuthError(auth.HUNG_UP) from error
    except BaseException:
        sock.close()
        raise
    return sock, keys


def _left(end: float, target: Any) -> float:
    """Return the seconds that a handshake has left.

    Raises:
        TimeoutError: there are none.
    """
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"the handshake with {_words(target)} takes too long")
    return left


def address_on_link(connection: Connection, addresses: list[Address]) -> Address | None:
    """Return at which of its addresses a peer is reached over the link of a TCP connection.

    Any other one between hosts if it does not listen there, and None if there is none.
    """
    try:
        host = connection.sock.getpeername()[0]
    except OSError:
        # Just closed.
        return None
    usable = [address for address in addresses if address[0] == "tcp"]
    return next((a for a in usable if a[1] == host), usable[0] if usable else None)


def _encrypted(sock: Any, context: Any, *, server_side: bool) -> TlsSocket:
    # Loaded by runs that need it.
    from rlinf.scheduler.net.tls import TlsSocket

    return TlsSocket(sock, context, server_side=server_side)


def _needed(sock: socket.socket | TlsSocket, keys: SealKeys) -> SealKeys | None:
    """Return the keys if somebody between the two could change what is sent.

    Under TLS nobody can: it proves every byte and the order of all.
    """
    plain = isinstance(sock, socket.socket)
    return keys if plain and sock.family != socket.AF_UNIX else None


def _user_of(sock: socket.socket) -> int:
    """Return the user whose process is at the other end of a socket of this machine."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return user


def _words(target: Any) -> str:
    return target if isinstance(target, str) else f"{target[0]} port {target[1]}"


def _reach(sock: socket.socket, target: Any, timeout: float) -> None:
    """Connect; errors name the address."""
    where = _words(target)
    sock.settimeout(timeout)
    try:
        interruptible(sock.connect, target)
    except TimeoutError as error:
        raise TimeoutError(
            f"nobody answers at {where} within {timeout:g} s; a firewall may block "
            "it (cluster.port_range sets the ports, RLINF_COMM_NET_DEVICES the interface)"
        ) from error
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: {where}") from error


def _tune(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_for_silence(sock)
        # The kernel chooses the buffers of TCP: a size that is set is capped, and then kept.
        return
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
