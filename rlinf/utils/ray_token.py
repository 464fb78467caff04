"""Whether this machine has a token of Ray's, by which nodes and programs are let into a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

MODE = "RAY_AUTH_MODE"
WHERE = "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
"""Where Ray looks for the token, in this order."""


def has_token(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether there is a token for Ray's authentication on this machine."""
    named = environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").is_file()


def use_token(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let Ray use the token of this machine, if there is one and nothing else was chosen.

    Ray does so by itself when it starts a cluster, but not when it joins one by its address. It has
    to be called before Ray is imported.
    """
    if MODE not in environ and has_token(environ):
        environ[MODE] = "token"
