"""A search service as a searcher: ours, or any other in the shape of Search-R1."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from rlinf.agents.search.deadline import handlers_with_deadline
from rlinf.agents.search.documents import Hit, SearchUnavailable, document_of
from rlinf.agents.search.queries import MOST_CHARACTERS
from rlinf.utils.loopback import is_loopback

KEY_VARIABLE = "RLINF_SEARCH_KEY"
"""Environment variable with the key of a service; keys do not belong into configs."""
_MOST_BYTES = 16 * 2**20
_RETRIES, _PAUSE_SECONDS = 2, 0.2


class RemoteIndex:
    """Asks a service; from any number of threads.

    Args:
        url: `http://host:port/retrieve`.
        key: of the service; None is that of `RLINF_SEARCH_KEY`, if it is set.
        timeout: seconds for a search, all attempts together.

    Raises:
        ValueError: the address is none of HTTP.
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 5.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"the search service {url!r} is no address; give one such as "
                "http://127.0.0.1:8000/retrieve"
            )
        self.url, self._timeout = url, timeout
        self._key = os.environ.get(KEY_VARIABLE) if key is None else key
        # What is on this machine is not behind the proxy of the environment.
        direct = [urllib.request.ProxyHandler({})] if is_loopback(parts.hostname) else []
        handlers = handlers_with_deadline(_tls() if parts.scheme == "https" else None)
        self._opener = urllib.request.build_opener(*handlers, *direct)

    def search(self, query: str, limit: int) -> list[Hit]:
        """See `Searcher.search`; what fails on the way is tried again.

        Raises:
            SearchUnavailable: the service does not answer, or says something else than documents.
        """
        text = query[:MOST_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
        request = {"queries": [text], "topk": limit, "return_scores": True}
        deadline = time.monotonic() + self._timeout
        for attempt in range(_RETRIES + 1):
            pause = _PAUSE_SECONDS * 2**attempt
            try:
                return self._hits(self._post(request, deadline))
            except _Refused as error:
                raise SearchUnavailable(str(error)) from error
            except (OSError, ValueError, http.client.HTTPException) as error:
                if attempt == _RETRIES or time.monotonic() + pause >= deadline:
                    raise SearchUnavailable(
                        f"the search service {self.url} does not answer as it should: {error}"
                    ) from error
            time.sleep(pause)
        raise AssertionError("not reached")

    def _post(self, request: dict[str, Any], deadline: float) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        asked = urllib.request.Request(self.url, json.dumps(request).encode(), headers)
        try:
            left = max(deadline - time.monotonic(), 1e-3)
            with self._opener.open(asked, timeout=left) as answer:
                # One byte more than is allowed tells that there is more.
                data = answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(500).decode("utf-8", "replace")
            if 300 <= error.code < 400:
                place = error.headers.get("Location", "another address")[:500]
                raise _Refused(
                    f"the search service {self.url} redirects to {place}, status {error.code}; "
                    "redirects are not followed: give the address of the service itself"
                ) from error
            if error.code in (408, 425, 429) or error.code >= 500:
                raise OSError(f"status {error.code}: {said}") from error
            raise _Refused(
                f"the search service {self.url} refused a query, status {error.code}: {said}"
            ) from error
        if len(data) > _MOST_BYTES:
            raise ValueError(f"its answer has more than {_MOST_BYTES} bytes")
        return json.loads(data)

    def _hits(self, answer: Any) -> list[Hit]:
        try:
            (found,) = answer["result"]
            return [_hit(each, place) for place, each in enumerate(found)]
        except (KeyError, TypeError) as error:
            raise ValueError('its answer has no "result" with a list for each query') from error


class _Refused(Exception):
    """The service will not answer this however often it is asked."""


def _tls() -> ssl.SSLContext:
    """Return a context with the certificates of the system, which take a while to load."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _hit(value: Any, place: int) -> Hit:
    scored = isinstance(value, dict) and "document" in value
    document = document_of(value["document"] if scored else value, str(place))
    score = float(value.get("score", 0.0)) if scored else 0.0
    return Hit(document, score)
