"""Ray's token on this machine, by which nodes and programs are let into a cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
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
    return bool(named) or default_place().is_file()


def default_place() -> Path:
    """Return the file that Ray keeps a token in unless it is told of another."""
    return Path.home() / ".ray" / "auth_token"


def make_token(environ: Mapping[str, str] = os.environ) -> None:
    """Make the token of a Ray that is about to be started, for this user alone.

    Ray would make one that all users of this machine can read, and such a one, if it is this
    user's, is closed to them. A token that is named by the environment is left alone.

    Raises:
        ValueError: the token or its folder is another user's, who could let anybody in.
    """
    if environ.get(MODE, "token").lower() != "token":
        return
    if environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    place = default_place()
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not place.exists():
        part = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        # Of several that do this at once, one wins, and its token is whole.
        with contextlib.suppress(FileExistsError):
            os.link(part, place)
        os.unlink(part)
    for path in (place.parent, place):
        if path.stat().st_uid not in (os.geteuid(), 0):
            raise ValueError(
                f"{path}, where Ray's token is, belongs to user {path.stat().st_uid}, who can let "
                "anybody into a Ray that uses it: remove it, or name another token in "
                "RAY_AUTH_TOKEN_PATH"
            )
        close_to_others(path)


def close_to_others(path: Path) -> None:
    """Take the rights of others to a file or folder of this user, where that is possible."""
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        # Some file systems have no rights to take; `rlinf doctor` says so.
        with contextlib.suppress(OSError):
            path.chmod(found.st_mode & 0o700)


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
