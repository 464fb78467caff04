"""Peers that have connected and have not proved yet that they belong to the run.

Anybody can connect and say nothing. So nobody waits for a newcomer: it has a thread from its first
byte on, a short time until then, and somewhat more for the whole proof. There is room for a bounded
number; when it is full, the one that has said nothing for the longest time makes room for the next.
Whoever has just come is let be: of many members that join at once, none is in the way of another.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlinf.scheduler.net.loop import IOLoop

if TYPE_CHECKING:
    from rlinf.scheduler.net.tls import TlsSocket

FIRST_BYTE_SECONDS = 10.0
PROOF_SECONDS = 60.0
MOST = 256
SILENT_SECONDS = 0.2
BEGUN_SECONDS = 5.0
"""How long one that has said nothing, or has begun its proof, is let be when there is no room."""
_LOOK_SECONDS = 1.0


class Newcomer:
    """One of them.

    Attributes:
        sock: its socket; replaced when it is encrypted.
        nonce: what it was sent, and has to answer.
        since: when it connected.
        speaks: whether it has said anything.
    """

    def __init__(self, sock: socket.socket, nonce: bytes, on_first_byte: Callable[[], None]):
        self.sock: socket.socket | TlsSocket = sock
        self.nonce = nonce
        self.since = time.monotonic()
        self.speaks = False
        self._on_first_byte = on_first_byte

    def fileno(self) -> int:
        """File descriptor of the socket."""
        return self.sock.fileno()

    def on_readable(self) -> None:
        """It has said something, or has gone (I/O thread)."""
        self._on_first_byte()

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
        loop: waits for their first bytes.
        admit: takes one that speaks, in a thread of its own, and calls `keep` once it has proved
            itself; one that takes too long finds its socket shut down.
    """

    def __init__(self, loop: IOLoop, admit: Callable[[Newcomer], None]):
        self._loop = loop
        self._admit = admit
        self._lock = threading.Lock()
        # In the order of their arrival.
        self._all: dict[Newcomer, None] = {}
        self._looking = False

    def has_room(self) -> bool:
        """Return whether another can come, in the place of one of them if need be (I/O thread)."""
        with self._lock:
            return len(self._all) < MOST or self._next_to_go() is not None

    def add(self, sock: socket.socket, nonce: bytes) -> None:
        """Wait for what a peer says, not here; only if there is room (I/O thread)."""
        newcomer = Newcomer(sock, nonce, lambda: self._listen_to(newcomer))
        with self._lock:
            going = self._next_to_go() if len(self._all) >= MOST else None
            if going is not None:
                self._send_away(going)
            self._all[newcomer] = None
        self._loop.add(newcomer)
        if not self._looking:
            self._looking = True
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _next_to_go(self) -> Newcomer | None:
        """Return who makes room for the next; with the lock held."""
        now = time.monotonic()
        for speaks, allowed in ((False, SILENT_SECONDS), (True, BEGUN_SECONDS)):
            oldest = next((n for n in self._all if n.speaks == speaks), None)
            if oldest is not None and now - oldest.since >= allowed:
                return oldest
        return None

    def _listen_to(self, newcomer: Newcomer) -> None:
        with self._lock:
            if newcomer not in self._all:
                return
            newcomer.speaks = True
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
                allowed = PROOF_SECONDS if newcomer.speaks else FIRST_BYTE_SECONDS
                if now - newcomer.since > allowed:
                    self._send_away(newcomer)
            self._looking = bool(self._all)
        if self._looking:
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def _send_away(self, newcomer: Newcomer) -> None:
        """Make room; with the lock held."""
        del self._all[newcomer]
        if newcomer.speaks:
            # Its thread notices, and closes it.
            with contextlib.suppress(OSError):
                newcomer.sock.shutdown(socket.SHUT_RDWR)
            return
        self._loop.remove(newcomer)
        newcomer.close()

    def close(self) -> None:
        """Send all away (I/O thread)."""
        with self._lock:
            for newcomer in list(self._all):
                self._send_away(newcomer)
