"""Notices hosts that have fallen silent: a cut cable and a lost host close no connection.

TCP keeps what is on the way and sends it again, so a link that comes back loses nothing. It only
does not tell how long to wait: that is decided here, by how long the kernel has heard nothing of a
peer. After a link has come back, a connection with data on the way may stay silent for a while,
since TCP tries again more and more rarely; whether the link works is then found out by a new
connection. Reaching the peer has a short time, since it is tried again; what the peer then has to
prove has a long one, since a busy peer is slow. No link waits for the probe of another.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlinf.scheduler.net.connection import Connection

if TYPE_CHECKING:
    from rlinf.scheduler.net.tls import TlsSocket

GRACE_SECONDS = 2.5
"""What a link that is back may take to show it, beyond the time that it may be down."""
_LOOK_SECONDS = 0.5
_QUIET_SECONDS = 2.5
"""Longer than a link that works can be silent: the kernel asks idle peers every second or two."""
_RECENT_SECONDS = 2.0
"""Age up to which a failed probe counts: one of before a suspended process says nothing."""
_INFO = struct.Struct("<52x2I")
_RTO_MAX_MS = 44
_LONGEST_RETRY_MS = 2000


def watch_for_silence(sock: socket.socket) -> None:
    """Let the kernel ask an idle peer whether it is there, and try again often what is not taken.

    It never gives a peer up by itself.
    """
    options = {socket.TCP_KEEPIDLE: 2, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 127}
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    # Kernels before 6.15 do not know it, and then take longer to go on after a cut.
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, _LONGEST_RETRY_MS)


def silence(sock: socket.socket | TlsSocket) -> float:
    """Return the seconds since the kernel has received anything of the peer of a TCP socket."""
    data, acknowledgement = _INFO.unpack(
        sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    )
    return min(data, acknowledgement) / 1000


Link = tuple[str, str]
"""The addresses of both ends."""
Probe = Callable[[Connection, Callable[[], None]], bool]
"""`probe(connection, on_reached)`: return whether the peer of a silent connection is there.

It is found out by a new connection: calls `on_reached` once that is made, within about a second,
and then has time for the proof that it is the peer.
"""


class LinkWatch:
    """Watches the TCP connections of a process.

    Args:
        limit: seconds that a link may be down.
        on_silent: `on_silent(connections, reason)`, called with all connections to a host of which
            nothing has been heard for longer.
        probe: finds out whether the peer of a silent connection is there; None if there is no way
            to, and only `heard` tells.
    """

    def __init__(
        self,
        limit: float,
        on_silent: Callable[[list[Connection], str], None],
        probe: Probe | None = None,
    ):
        self._limit = limit + GRACE_SECONDS
        self._on_silent = on_silent
        self._probe = probe
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._heard: weakref.WeakKeyDictionary[Connection, float] = weakref.WeakKeyDictionary()
        # Probes that have reached the peer and wait for its proof, and when one last failed.
        self._proving: Counter[Link] = Counter()
        self._failed: dict[Link, float] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, connection: Connection) -> None:
        """Watch a connection until it is closed; one within a machine is not watched."""
        if connection.sock.family == socket.AF_UNIX:
            return
        with self._lock:
            self._connections.add(connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rlinf-links", daemon=True)
                self._thread.start()

    def heard(self, connection: Connection) -> None:
        """Note that the peer of a connection is there, as was seen otherwise."""
        with self._lock:
            self._heard[connection] = time.monotonic()

    def stop(self) -> None:
        """End the watch."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            with self._lock:
                watched = [c for c in self._connections if c.closed is None]
            quiet = {c: seconds for c in watched if (seconds := self._silence(c)) > _QUIET_SECONDS}
            links: dict[Link, list[Connection]] = {}
            for connection in quiet:
                links.setdefault(_link(connection), []).append(connection)
            for link, connections in links.items():
                self._judge(link, connections, max(quiet[c] for c in connections))

    def _judge(self, link: Link, connections: list[Connection], seconds: float) -> None:
        """Tell that a link is silent for too long, or find out whether it works."""
        with self._lock:
            if self._proving[link]:
                return
            failed = time.monotonic() - self._failed.get(link, -math.inf) < _RECENT_SECONDS
        if seconds > self._limit and (failed or self._probe is None):
            here, host = link
            reason = f"{here} has heard nothing from {host} for {seconds:.1f} s"
            self._on_silent(connections, reason)
        elif self._probe is not None:
            # Also while another one tries to reach the peer: the link may be up for a moment only.
            args = (self._probe, link, connections)
            threading.Thread(
                target=self._find_out, args=args, name="rlinf-probe", daemon=True
            ).start()

    def _find_out(self, probe: Probe, link: Link, connections: list[Connection]) -> None:
        """Probe a link, and note what was found."""
        reached = False

        def on_reached() -> None:
            nonlocal reached
            reached = True
            with self._lock:
                self._proving[link] += 1

        there = False
        try:
            there = probe(connections[0], on_reached)
        finally:
            with self._lock:
                self._proving[link] -= reached
                if not there:
                    self._failed[link] = time.monotonic()
                else:
                    self._failed.pop(link, None)
                    self._heard.update(dict.fromkeys(connections, time.monotonic()))

    def _silence(self, connection: Connection) -> float:
        try:
            seconds = silence(connection.sock)
        except OSError:
            # Just closed.
            return 0.0
        if seconds <= _QUIET_SECONDS:
            return seconds
        with self._lock:
            heard = self._heard.get(connection)
        return seconds if heard is None else min(seconds, time.monotonic() - heard)


def _link(connection: Connection) -> Link:
    try:
        return connection.sock.getsockname()[0], connection.sock.getpeername()[0]
    except OSError:
        # Just closed.
        return "", ""
