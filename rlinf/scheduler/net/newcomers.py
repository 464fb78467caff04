"""Peers that have connected and have not proved yet that they belong to the run.

Anybody can connect, and say nothing or something wrong. So nobody waits for a newcomer: it has a
thread once its first proof is right, a short time until then, and one deadline for the whole proof.
There is room for a bounded number; when it is full, the oldest without a first proof makes room for
the next. Whoever has just come is let be: of many members that join at once, none is in the way of
another.

Who finds no room waits, not greeted yet. Places are shared by origin, the network or the user that
peers come from: the origin with the fewest places is next, and one that has more than others gives
them up sooner. Some places are kept for origins that have proved themselves before. So whoever
fills all places from one origin keeps out nobody but itself.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from rlinf.scheduler.net.auth import FIRST_PROOF
from rlinf.scheduler.net.loop import IOLoop

if TYPE_CHECKING:
    from rlinf.scheduler.net.tls import TlsSocket

FIRST_PROOF_SECONDS = 10.0
PROOF_SECONDS = 60.0
MOST = 256
STRANGER_SECONDS = 0.2
"""How long one without a first proof is let be when there is no room."""
KEPT = 0.25
"""Share of the places that only origins which have proved themselves can have."""
_MOST_WAITING = 1024
_LOOK_SECONDS = 1.0
_WAIT_SECONDS = 0.05


def origin_of(host: str) -> str:
    """Return the origin of an address: all that anybody can have at once are one.

    These are the addresses of the loopback device, and the last 64 bits of IPv6.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_loopback:
        return "loopback"
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


class Newcomer:
    """One of them.

    Attributes:
        sock: its socket; replaced when it is encrypted.
        nonce: what it was sent, and has to answer.
        origin: where it comes from.
        since: when it was greeted.
        said: what it has answered so far, up to the size of a first proof.
        proved: whether its first proof was right.
    """

    def __init__(
        self,
        sock: socket.socket,
        nonce: bytes,
        origin: Hashable,
        on_readable: Callable[[], None],
    ):
        self.sock: socket.socket | TlsSocket = sock
        self.nonce = nonce
        self.origin = origin
        self.since = time.monotonic()
        self.said = b""
        self.proved = False
        self._on_readable = on_readable

    def fileno(self) -> int:
        """File descriptor of the socket."""
        return self.sock.fileno()

    def on_readable(self) -> None:
        """It has said something, or has gone (I/O thread)."""
        self._on_readable()

    def on_writable(self) -> None:
        """Nothing is written here."""

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def close_in_child(self, reason: str) -> None:
        """Do nothing: the socket is closed with all others."""


class Newcomers:
    """Those of one listener.

    Args:
        loop: waits for their first proofs.
        greet: sends the first words to one, and returns the nonce in them; None if it has gone.
        recognise: returns whether the first proof of one is right.
        admit: takes one whose first proof was right, in a thread of its own, and calls `keep` once
            it has proved itself; one that takes too long finds its socket shut down.
    """

    def __init__(
        self,
        loop: IOLoop,
        greet: Callable[[socket.socket], bytes | None],
        recognise: Callable[[Newcomer], bool],
        admit: Callable[[Newcomer], None],
    ):
        self._loop = loop
        self._greet = greet
        self._recognise = recognise
        self._admit = admit
        self._lock = threading.Lock()
        # In the order of their arrival.
        self._all: dict[Newcomer, None] = {}
        self._waiting: dict[Hashable, deque[tuple[socket.socket, float]]] = {}
        self._known: set[Hashable] = set()
        self._looking = self._promoting = False

    def add(self, sock: socket.socket, origin: Hashable) -> None:
        """Greet a peer when there is room, and wait for what it says, not here (I/O thread)."""
        self._waiting.setdefault(origin, deque()).append((sock, time.monotonic()))
        self._promote()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        while sum(map(len, self._waiting.values())) > min(_MOST_WAITING, soft // 8):
            crowd = max(self._waiting, key=lambda name: len(self._waiting[name]))
            self._next_of(crowd, last=True).close()
        if self._waiting and not self._promoting:
            self._promoting = True
            self._loop.call_later(_WAIT_SECONDS, self._promote_later)

    def _promote_later(self) -> None:
        self._promoting = False
        self._promote()
        if self._waiting:
            self._promoting = True
            self._loop.call_later(_WAIT_SECONDS, self._promote_later)

    def _promote(self) -> None:
        """Give places to those that wait, as far as there are any."""
        while self._waiting:
            with self._lock:
                held = Counter(newcomer.origin for newcomer in self._all)
                origin = min(self._waiting, key=lambda name: (name not in self._known, held[name]))
                if len(self._all) >= self._places(origin):
                    going = self._next_to_go(held, origin)
                    if going is None:
                        return
                    self._send_away(going)
            self._begin(self._next_of(origin), origin)

    def _next_of(self, origin: Hashable, last: bool = False) -> socket.socket:
        waiting = self._waiting[origin]
        sock, _ = waiting.pop() if last else waiting.popleft()
        if not waiting:
            del self._waiting[origin]
        return sock

    def _begin(self, sock: socket.socket, origin: Hashable) -> None:
        nonce = self._greet(sock)
        if nonce is None:
            return
        newcomer = Newcomer(sock, nonce, origin, lambda: self._listen_to(newcomer))
        with self._lock:
            self._all[newcomer] = None
        self._loop.add(newcomer)
        if not self._looking:
            self._looking = True
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _places(self, origin: Hashable) -> int:
        return MOST if origin in self._known else MOST - int(KEPT * MOST)

    def _next_to_go(self, held: Counter[Hashable], origin: Hashable) -> Newcomer | None:
        """Return who makes room for one from an origin; with the lock held."""
        crowd, most = held.most_common(1)[0]
        # Of all, unless one origin has more places than who comes.
        of = {crowd} if most > held[origin] + 1 else set(held)
        oldest = next((n for n in self._all if not n.proved and n.origin in of), None)
        if oldest is None or time.monotonic() - oldest.since < STRANGER_SECONDS:
            return None
        return oldest

    def _listen_to(self, newcomer: Newcomer) -> None:
        """Read some of a first proof (I/O thread)."""
        try:
            part = newcomer.sock.recv(FIRST_PROOF - len(newcomer.said))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        newcomer.said += part
        if part and len(newcomer.said) < FIRST_PROOF:
            return
        with self._lock:
            if newcomer not in self._all:
                return
            if not self._recognise(newcomer):
                self._send_away(newcomer)
                return
            newcomer.proved = True
        self._loop.remove(newcomer)
        threading.Thread(target=self._run, args=(newcomer,), daemon=True).start()

    def keep(self, newcomer: Newcomer) -> None:
        """Note that one has proved itself.

        Raises:
            ConnectionError: it has been sent away meanwhile.
        """
        with self._lock:
            if newcomer not in self._all:
                raise ConnectionError("the proof took too long")
            del self._all[newcomer]
            self._known.add(newcomer.origin)

    def _run(self, newcomer: Newcomer) -> None:
        try:
            self._admit(newcomer)
        finally:
            with self._lock:
                self._all.pop(newcomer, None)

    def _look(self) -> None:
        """Send away whoever takes too long (I/O thread)."""
        now = time.monotonic()
        with self._lock:
            for newcomer in list(self._all):
                allowed = PROOF_SECONDS if newcomer.proved else FIRST_PROOF_SECONDS
                if now - newcomer.since > allowed:
                    self._send_away(newcomer)
            self._looking = bool(self._all)
        for origin in list(self._waiting):
            while origin in self._waiting and now - self._waiting[origin][0][1] > PROOF_SECONDS:
                self._next_of(origin).close()
        if self._looking:
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _send_away(self, newcomer: Newcomer) -> None:
        """Make room; with the lock held."""
        del self._all[newcomer]
        if newcomer.proved:
            # Its thread notices, and closes it.
            with contextlib.suppress(OSError):
                newcomer.sock.shutdown(socket.SHUT_RDWR)
            return
        self._loop.remove(newcomer)
        newcomer.close()

    def close(self) -> None:
        """Send all away (I/O thread)."""
        for origin in list(self._waiting):
            while origin in self._waiting:
                self._next_of(origin).close()
        with self._lock:
            for newcomer in list(self._all):
                self._send_away(newcomer)
