"""HTTP requests whose timeout is one deadline: from the connection to the last byte read."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.request
from functools import partial
from typing import Any


def handlers_with_deadline(context: ssl.SSLContext | None) -> list[urllib.request.BaseHandler]:
    """Return handlers for `build_opener` that read `timeout` as that of the whole answer.

    Those of the standard library begin it anew with each address of a host, each part that
    arrives and each redirect. Redirects are not followed: a status of 300 to 399 is an
    `HTTPError`. The system resolves names, which takes from the time but cannot be cut short.

    Args:
        context: of HTTPS; None loads the certificates of the system for each request.
    """
    return [_HttpHandler(), _HttpsHandler(context=context), _NoRedirects()]


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HttpConnection, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HttpsConnection, req, context=self._context)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        """Refuse: the request would take its key to another host, with its time begun anew."""


class _HttpConnection(http.client.HTTPConnection):
    """A connection whose timeout began when it was made."""

    def __init__(
        self, host: str, port: int | None = None, timeout: float = 0.0, *args: Any, **settings: Any
    ) -> None:
        self._deadline = time.monotonic() + timeout
        super().__init__(host, port, timeout, *args, **settings)
        self.response_class = partial(_response, self._deadline)
        # With the method of the base class, each address of the host has the whole timeout.
        self._create_connection = partial(_connect, self._deadline)

    def connect(self) -> None:
        super().connect()
        _limit_to_remaining(self.sock, self._deadline)


class _HttpsConnection(http.client.HTTPSConnection, _HttpConnection):
    """The same with TLS; in this order of bases, the handshake follows the `connect` above."""

    def connect(self) -> None:
        super().connect()
        _limit_to_remaining(self.sock, self._deadline)


def _connect(deadline: float, address: tuple[str, int], *_: Any) -> socket.socket:
    """Connect to the first address of a host that accepts, as `socket.create_connection` does."""
    failure = OSError(f"{address[0]} has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            _limit_to_remaining(sock, deadline)
            sock.connect(place)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure


def _response(deadline: float, sock: socket.socket, *args: Any, **facts: Any) -> Any:
    return http.client.HTTPResponse(_SocketFile(sock, deadline), *args, **facts)


class _SocketFile:
    """What `HTTPResponse` asks a socket for: a file to read."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        file = self._sock.makefile(mode, buffering=0)
        return io.BufferedReader(_DeadlineReader(file, self._sock, self._deadline))


class _DeadlineReader(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, file: Any, sock: socket.socket, deadline: float) -> None:
        self._file, self._sock, self._deadline = file, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        _limit_to_remaining(self._sock, self._deadline)
        return self._file.readinto(buffer)

    def close(self) -> None:
        # The socket stays open until its last file is closed.
        self._file.close()
        super().close()


def _limit_to_remaining(sock: socket.socket, deadline: float) -> None:
    """Let the next operation on a socket take what is left of the time.

    Raises:
        TimeoutError: nothing is left.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("its answer was not complete in time")
    sock.settimeout(left)
