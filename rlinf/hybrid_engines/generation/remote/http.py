"""HTTP to the server of an engine: only what has not been sent yet is tried again."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from rlinf.utils.urls import check_url

API_KEY = "RLINF_ENGINE_API_KEY"
"""Environment variable with the key that servers ask for (`--api-key`)."""

_SHOWN = 300
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A host that is gone is noticed within a minute, however long an answer takes."""


class EngineServerError(RuntimeError):
    """The server of an engine cannot be reached, refused a request, or broke an answer off.

    Attributes:
        status: Of the answer; 0 if there was none.
    """

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


class Cancelled(Exception):
    """An exchange was cut off by its owner."""


class Server:
    """A server, by its URL.

    Args:
        url: Such as `http://host:8000`; a path before those of the engine may follow.
        connect_timeout: Seconds to try to connect.
        answer_timeout: Seconds without a byte of an answer.

    Raises:
        ValueError: It is not an HTTP URL.
    """

    def __init__(self, url: str, *, connect_timeout: float, answer_timeout: float):
        check_url(url)
        parts = urlsplit(url)
        self.url = url.rstrip("/")
        self.connect_timeout = connect_timeout
        self.answer_timeout = answer_timeout
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")

    def get(self, path: str) -> Any:
        """Return the JSON of an answer; None if it is empty.

        Raises:
            EngineServerError: There is none, or its status is not 200.
        """
        return Exchange(self, "GET", path).answer()

    def post(self, path: str, body: Any) -> Any:
        """Send JSON; as `get`."""
        return Exchange(self, "POST", path, body).answer()

    def connected(self) -> http.client.HTTPConnection:
        """Connect; as long as nobody listens, try again until the time is over.

        Raises:
            EngineServerError: Nobody answers.
        """
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        end = time.monotonic() + self.connect_timeout
        pause = 0.05
        while True:
            connection = kind(self._host, self._port, timeout=self.connect_timeout)
            try:
                connection.connect()
            except ConnectionRefusedError as error:
                if time.monotonic() + pause > end:
                    raise self.error("connect", error) from error
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            except OSError as error:
                raise self.error("connect", error) from error
            connection.sock.settimeout(self.answer_timeout)
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connection.sock.setsockopt(socket.IPPROTO_TCP, option, value)
            return connection

    def headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        key = os.environ.get(API_KEY)
        further = {"Authorization": f"Bearer {key}"} if key else {}
        return {"Content-Type": "application/json", **further}

    def full_path(self, path: str) -> str:
        """Return the path of a request with that of the URL before it."""
        return self._base + path

    def error(self, what: str, error: object, status: int = 0) -> EngineServerError:
        """Return the error that names the server and what was asked of it."""
        said = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else error
        advice = ""
        if isinstance(error, TimeoutError):
            advice = (
                f" within {self.connect_timeout:g} s (rollout.server.start_timeout)"
                if what == "connect"
                else f" for {self.answer_timeout:g} s (rollout.server.answer_timeout)"
            )
        elif status in (401, 403):
            advice = f"; put the server's key into the environment variable {API_KEY}"
        elif what == "connect":
            advice = "; is the server running there, and can this host reach it?"
        return EngineServerError(f"engine at {self.url}, {what}: {said}{advice}", status)


class Exchange:
    """One request and its answer, which another thread may cut off.

    Args:
        server: Whom to ask.
        method: `GET` or `POST`.
        path: Below the server's URL.
        body: What is sent as JSON; None sends nothing.
    """

    def __init__(self, server: Server, method: str, path: str, body: Any = None):
        self._server = server
        self._method, self._path = method, path
        self._body = None if body is None else json.dumps(body).encode()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._cancelled = False

    @property
    def what(self) -> str:
        """What errors call the request."""
        return f"{self._method} {self._path}"

    @property
    def cancelled(self) -> bool:
        """Whether the owner has cut it off."""
        return self._cancelled

    def answer(self) -> Any:
        """Ask, and return the JSON of the whole answer; None if it is empty."""
        text = b"".join(self.lines())
        if not text.strip():
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._server.error(self.what, f"not JSON: {text[:_SHOWN]!r}") from error

    def lines(self) -> Iterator[bytes]:
        """Ask, and give the lines of the answer as they come.

        Raises:
            EngineServerError: The server did not answer, or not with 200.
            Cancelled: The exchange was cut off.
        """
        connection = self._server.connected()
        try:
            with self._lock:
                if self._cancelled:
                    raise Cancelled
                self._socket = connection.sock
            path = self._server.full_path(self._path)
            connection.request(self._method, path, self._body, self._server.headers())
            response = connection.getresponse()
            if response.status != 200:
                said = response.read(4 * _SHOWN).decode(errors="replace")[:_SHOWN]
                message = f"{response.status} {response.reason}: {said}"
                raise self._server.error(self.what, message, response.status)
            yield from response
            if self._cancelled:
                raise Cancelled
        except (OSError, http.client.HTTPException) as error:
            if self._cancelled:
                raise Cancelled from error
            raise self._server.error(self.what, error) from error
        finally:
            with self._lock:
                self._socket = None
            connection.close()

    def cancel(self) -> None:
        """Cut the exchange off; whoever reads its answer gets `Cancelled`."""
        with self._lock:
            self._cancelled = True
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return  # The server has closed it already.
