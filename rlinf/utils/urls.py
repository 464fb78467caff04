"""Addresses of servers that users give."""

from __future__ import annotations

from urllib.parse import urlsplit


def check_url(url: str) -> None:
    """Refuse what is not the URL of an HTTP server.

    Raises:
        ValueError: It is not.
    """
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is not the URL of a server, such as http://host:8000")
