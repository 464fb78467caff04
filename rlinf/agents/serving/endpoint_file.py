"""`endpoint.json`: where an endpoint is, and the key that it asks for; for its user alone."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

NAME = "endpoint.json"


def new_key() -> str:
    """Return a key that nobody can guess."""
    return f"rlinf-{secrets.token_urlsafe(32)}"


def write_endpoint(folder: Path, url: str, key: str, model: str) -> Path:
    """Write the file; nobody else can read it, not even while it is written.

    Args:
        folder: Of the run.
        url: Of the endpoint.
        key: Of it.
        model: Name that requests have to give.

    Returns:
        The file.
    """
    path = folder / NAME
    part = folder / f".{NAME}.{secrets.token_hex(4)}"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"url": url, "key": key, "model": model, "pid": os.getpid()}, file)
        file.write("\n")
    os.replace(part, path)
    return path


def remove_endpoint(folder: Path, key: str) -> None:
    """Remove the file, unless another endpoint has written its own there."""
    with contextlib.suppress(OSError, ValueError):
        path = folder / NAME
        if json.loads(path.read_text())["key"] == key:
            path.unlink()
