"""Search as an HTTP service, in the shape of Search-R1: `POST /retrieve`."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlinf.agents.search.documents import Hit, Searcher, SearchUnavailable
from rlinf.utils.loopback import is_loopback

MOST_BYTES = 4 * 2**20
"""Of a request."""
MOST_QUERIES, MOST_HITS = 1024, 100
"""Queries of a request, and documents for each."""
_AT_ONCE, _PATIENCE_SECONDS = 64, 5.0
"""Requests that are answered at a time. Others wait so long; then they may be made again."""
_SLOW_SECONDS = 30.0
"""What a client may take between two parts of a request."""


class BadRequest(ValueError):
    """A request that cannot be answered.

    Attributes:
        status: code of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class SearchService:
    """Answers searches over HTTP, until it is closed.

    `POST /retrieve` takes `{"queries": [text, ...], "topk": 3, "return_scores": true}` and gives
    `{"result": [[{"document": {"id", "title", "text", "contents"}, "score"}, ...], ...]}`: a list
    for each query. Without scores the documents stand there themselves. `GET /health` tells how
    many documents there are.

    Args:
        searcher: what is searched.
        host: address to listen on.
        port: 0 takes a free one.
        key: what clients send as `Authorization: Bearer KEY`; None lets all in.
        limit: documents of a request that does not say how many.

    Raises:
        ValueError: other hosts could reach it, and there is no key.
    """

    def __init__(
        self,
        searcher: Searcher,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        limit: int = 3,
    ) -> None:
        if not key and not is_loopback(host):
            raise ValueError(
                f"the address {host} can be reached from other machines, and there is no key; set "
                "RLINF_SEARCH_KEY here and where the service is used, or listen on 127.0.0.1"
            )
        self._searcher, self._key, self._limit = searcher, key, limit
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._server = _Server((host, port), _handler_of(self))
        self.host, self.port = self._server.server_address[:2]

    @property
    def url(self) -> str:
        """Where clients send queries."""
        host = f"[{self.host}]" if ":" in str(self.host) else self.host
        return f"http://{host}:{self.port}/retrieve"

    def serve(self) -> None:
        """Answer until `close` is called in another thread."""
        self._server.serve_forever(poll_interval=0.1)

    def start(self) -> SearchService:
        """Answer in a thread of its own."""
        threading.Thread(target=self.serve, daemon=True, name="search service").start()
        return self

    def close(self) -> None:
        """End, and give the port back; `serve` is running."""
        self._server.shutdown()
        self._server.server_close()

    # -- requests -------------------------------------------------------------------------------

    def allow(self, authorization: str | None) -> None:
        """Check the key of a request.

        Raises:
            BadRequest: it is another, or missing.
        """
        given = (authorization or "").removeprefix("Bearer ").encode("utf-8", "replace")
        if self._key and not hmac.compare_digest(given, self._key.encode()):
            raise BadRequest(401, "the key is missing or wrong: Authorization: Bearer KEY")

    def health(self) -> dict[str, Any]:
        """Return what a client can check before it begins."""
        size = len(self._searcher) if hasattr(self._searcher, "__len__") else None
        return {"status": "ok", "documents": size}

    def retrieve(self, request: Any) -> dict[str, Any]:
        """Answer a request.

        Raises:
            BadRequest: it cannot be answered; says why.
        """
        if not self._room.acquire(timeout=_PATIENCE_SECONDS):
            raise BadRequest(503, f"{_AT_ONCE} requests are under way; ask again")
        try:
            queries, limit, scores = self._read(request)
            found = [self._searcher.search(query, limit) for query in queries]
        except SearchUnavailable as error:
            raise BadRequest(503, str(error)) from error
        finally:
            self._room.release()
        return {"result": [[_plain(hit, scores) for hit in hits] for hits in found]}

    def _read(self, request: Any) -> tuple[list[str], int, bool]:
        if not isinstance(request, Mapping):
            raise BadRequest(400, 'a request is an object with "queries"')
        queries = request.get("queries")
        if not isinstance(queries, list) or not all(isinstance(each, str) for each in queries):
            raise BadRequest(400, '"queries" must be a list of texts')
        if len(queries) > MOST_QUERIES:
            raise BadRequest(400, f"{len(queries)} queries; at most {MOST_QUERIES} are answered")
        limit = request.get("topk")
        limit = self._limit if limit is None else limit
        if type(limit) is not int or not 1 <= limit <= MOST_HITS:
            raise BadRequest(400, f'"topk" must be a whole number from 1 to {MOST_HITS}')
        return queries, limit, bool(request.get("return_scores", False))


class _Server(ThreadingHTTPServer):
    """Takes the connections of a whole batch of episodes at once."""

    daemon_threads = True
    request_queue_size = 1024


def _plain(hit: Hit, scores: bool) -> dict[str, Any]:
    document = hit.document
    found = {
        "id": document.id,
        "title": document.title,
        "text": document.text,
        "contents": document.contents,
    }
    return {"document": found, "score": hit.score} if scores else found


def _handler_of(service: SearchService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Reads requests for a service, and writes what it says."""

        protocol_version = "HTTP/1.1"
        server_version, sys_version = "rlinf-search", ""
        timeout = _SLOW_SECONDS

        def do_GET(self) -> None:  # noqa: N802
            self._answer(lambda: service.health() if self.path == "/health" else _missing())

        def do_POST(self) -> None:  # noqa: N802
            self._answer(
                lambda: service.retrieve(self._body()) if self.path == "/retrieve" else _missing()
            )

        def _answer(self, work: Any) -> None:
            status, said = 200, {}
            try:
                service.allow(self.headers.get("Authorization"))
                said = work()
            except BadRequest as error:
                status, said = error.status, {"detail": str(error)}
                # What was not read of the request would be taken for the next one.
                self.close_connection = True
            except (ConnectionError, TimeoutError):
                # The client has gone, or takes too long.
                self.close_connection = True
                return
            try:
                self._write(status, said)
            except (ConnectionError, TimeoutError):
                self.close_connection = True

        def _write(self, status: int, said: dict[str, Any]) -> None:
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

        def _body(self) -> Any:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal():
                raise BadRequest(411, "the request must say its Content-Length")
            if int(length) > MOST_BYTES:
                raise BadRequest(413, f"the request has {length} bytes; at most {MOST_BYTES}")
            try:
                return json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError) as error:
                raise BadRequest(400, f"the request is no JSON: {error}") from error

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a run asks thousands of times."""

    return Handler


def _missing() -> dict[str, Any]:
    raise BadRequest(404, "there are POST /retrieve and GET /health")
