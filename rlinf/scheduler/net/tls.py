"""A socket under TLS, with those methods of a socket that connections use.

The library's object may be used by one thread at a time, so reading and writing take turns. What
it has read and not yet given out is not seen by whoever watches the socket: such a socket has to be
read until it would block.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

from rlinf.scheduler.net import forks
from rlinf.scheduler.net.auth import HUNG_UP, AuthError

_RECORD = 1 << 14
"""Bytes of the largest record of TLS; smaller parts are put together to fill one."""
_TURN = 1 << 20
"""Bytes after which the other direction has its turn."""


class TlsSocket:
    """One end of an encrypted connection.

    Args:
        sock: a connected socket; belongs to this from then on.
        context: of this side.
        server_side: whether the connection was accepted.

    Attributes:
        family: of the socket.
        peer: address of the peer in words.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool):
        self.family = sock.family
        self.peer = "{} port {}".format(*sock.getpeername())
        self._server_side = server_side
        self._lock = threading.Lock()
        self._due = 0
        self._over = False
        self._failure: OSError | None = None
        self._inner = forks.close_in_child(
            context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
        )

    def handshake(self) -> None:
        """Show the run's certificate and check the peer's, on a blocking socket.

        Raises:
            AuthError: the peer has another certificate or none, or does not speak TLS 1.3.
        """
        side = "connecting" if self._server_side else "listening"
        try:
            self._inner.do_handshake()
        except ssl.SSLEOFError as error:
            raise AuthError(HUNG_UP) from error
        except ssl.SSLCertVerificationError as error:
            raise AuthError(
                f"the {side} side, {self.peer}, has a certificate that is not of this run: it "
                "does not know the secret of this run"
            ) from error
        except ssl.SSLError as error:
            raise AuthError(
                f"the {side} side, {self.peer}, does not show the certificate of this run by TLS "
                f"1.3 ({_reason(error)}); this run is encrypted (cluster.encryption: true)"
            ) from error

    # -- the peer has proved itself by now, or does so by these -----------------------------------

    def recv(self, size: int) -> bytes:
        """Receive on a blocking socket."""
        try:
            return self._inner.recv(size)
        except ssl.SSLError as error:
            raise self._broken(error) from error

    def sendall(self, data: bytes) -> None:
        """Send on a blocking socket."""
        try:
            self._inner.sendall(data)
        except ssl.SSLEOFError as error:
            raise BrokenPipeError(f"{self.peer} has ended the encrypted connection") from error
        except ssl.SSLError as error:
            raise self._broken(error) from error

    def sendmsg(self, parts: Sequence[Any]) -> int:
        """Encrypt some bytes of the first parts and give them to the kernel.

        After a call that would block, the next one must begin with the same bytes and have at least
        as many: what the library could not write, it has encrypted already.

        Raises:
            BlockingIOError: the kernel does not take all of them now.
            ConnectionError: the connection is broken.
        """
        data = _first_of(parts)
        assert len(data) >= self._due
        try:
            with self._lock:
                sent = self._inner.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._due = len(data)
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise self._broken(error) from error
        self._due = 0
        return sent

    def recv_into(self, target: memoryview) -> int:
        """Decrypt into memory what has arrived; 0 at the end of the stream.

        What came before an error or before the end is given out first.

        Raises:
            BlockingIOError: nothing has arrived.
            ConnectionError: the connection is broken, or something was altered on its way.
        """
        filled = 0
        while filled < len(target) and not self._over:
            try:
                with self._lock:
                    # Gives one record at most.
                    count = self._inner.read(_RECORD, target[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not filled:
                    raise BlockingIOError from None
                break
            except OSError as error:
                self._over = True
                self._failure = self._broken(error) if isinstance(error, ssl.SSLError) else error
                break
            self._over = count == 0
            filled += count
        if not filled and self._failure is not None:
            raise self._failure
        return filled

    def _broken(self, error: ssl.SSLError) -> ConnectionError:
        reason = _reason(error)
        if isinstance(error, ssl.SSLEOFError):
            return ConnectionError(f"{self.peer} has closed the connection")
        if "alert" in reason:
            return ConnectionError(f"{self.peer} has ended the encrypted connection: {reason}")
        return ConnectionError(f"what came from {self.peer} is not what it sent: {reason}")

    # -- the socket itself --------------------------------------------------------------------

    def fileno(self) -> int:
        """File descriptor of the socket."""
        return self._inner.fileno()

    def getsockname(self) -> Any:
        """Address of this end."""
        return self._inner.getsockname()

    def getpeername(self) -> Any:
        """Address of the other end."""
        return self._inner.getpeername()

    def getsockopt(self, *args: Any) -> Any:
        """Option of the socket."""
        return self._inner.getsockopt(*args)

    def setsockopt(self, *args: Any) -> None:
        """Set an option of the socket."""
        self._inner.setsockopt(*args)

    def settimeout(self, seconds: float | None) -> None:
        """Deadline of everything that blocks."""
        self._inner.settimeout(seconds)

    def setblocking(self, blocking: bool) -> None:
        """Let it block or not."""
        self._inner.setblocking(blocking)

    def shutdown(self, how: int) -> None:
        """End directions of the connection; what has arrived can still be read."""
        # That of the library would let everything afterwards through as it is.
        socket.socket.shutdown(self._inner, how)

    def close(self) -> None:
        """Close the socket."""
        with self._lock:
            self._over = True
            self._inner.close()


def _first_of(parts: Sequence[Any]) -> Any:
    """Return the bytes to encrypt next: of a large part, or of several small ones."""
    if len(parts) == 1 or len(parts[0]) >= _RECORD:
        return memoryview(parts[0])[:_TURN]
    data = bytearray()
    for part in parts:
        data += memoryview(part)[: _RECORD - len(data)]
        if len(data) == _RECORD:
            break
    return data


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
