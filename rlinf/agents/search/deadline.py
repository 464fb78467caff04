"""HTTP requests whose timeout is one deadline: from the connection to the last byte read."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from functools import partial
from typing import Any


def handlers_with_deadline() -> list[urllib.request.BaseHandler]:
    """Return handlers for `build_opener` that read `timeout` as that of the whole answer.

    Those of the standard library begin it anew with each part that arrives. The resolution of
    names is that of the system, and does not count.
    """
    return [_HttpHandler(), _HttpsHandler()]


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HttpConnection, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HttpsConnection, req)


class _HttpConnection(http.client.HTTPConnection):
    """A connection whose timeout began when it was made."""

    def __init__(self, *args: Any, timeout: float, **settings: Any) -> None:
        super().__init__(*args, timeout=timeout, **settings)
        self._deadline = time.monotonic() + timeout
        self.response_class = partial(_response, self._deadline)

    def connect(self) -> None:
        super().connect()
        _let_rest(self.sock, self._deadline)


class _HttpsConnection(_HttpConnection, http.client.HTTPSConnection):
    pass


def _response(deadline: float, sock: socket.socket, *args: Any, **facts: Any) -> Any:
    return http.client.HTTPResponse(_Readable(sock, deadline), *args, **facts)


class _Readable:
    """What `HTTPResponse` asks a socket for: a file to read."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        file = self._sock.makefile(mode, buffering=0)
        return io.BufferedReader(_Raw(file, self._sock, self._deadline))


class _Raw(io.RawIOBase):
    """Reads from a socket until a deadline."""

    def __init__(self, file: Any, sock: socket.socket, deadline: float) -> None:
        self._file, self._sock, self._deadline = file, sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        _let_rest(self._sock, self._deadline)
        return self._file.readinto(buffer)

    def close(self) -> None:
        # The socket stays open until its last file is closed.
        self._file.close()
        super().close()


def _let_rest(sock: socket.socket, deadline: float) -> None:
    """Let the next operation on a socket take what is left of the time.

    Raises:
        TimeoutError: nothing is left.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("its answer was not complete in time")
    sock.settimeout(left)
