"""Whether this machine has a token of Ray's, by which nodes and programs are let into a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

MODE = "RAY_AUTH_MODE"
WHERE = "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
"""Where Ray looks for the token, in this order."""
_SECONDS = 20.0


def has_token(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether there is a token for Ray's authentication on this machine."""
    named = environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or (Path.home() / ".ray" / "auth_token").is_file()


def use_token(address: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let Ray use the token of this machine to join a cluster, if that asks for one.

    Ray does so by itself when it starts a cluster, but not when it joins one by its address. It has
    to be called before Ray is imported, and does nothing where there is no token, or where
    something else was chosen.

    Args:
        address: of the cluster.
        environ: variables that Ray reads.
    """
    if MODE not in environ and has_token(environ) and not _is_open(address, environ):
        environ[MODE] = "token"


def _is_open(address: str, environ: Mapping[str, str]) -> bool:
    """Return whether a cluster lets programs in that show no token.

    Such a cluster cannot talk to a program that asks it for one: calls would fail, and say nothing
    of tokens.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        asked = subprocess.run(
            command,
            env={**environ, MODE: "disabled"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
