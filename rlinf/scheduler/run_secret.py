"""The secret of a run, which its processes derive from Ray's token and do not tell each other.

Every node of a cluster that Ray authenticates has the same token. From it, a salt and the run's id
follows the secret; these two travel with what Ray starts, and are of no use without the token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rlinf.scheduler.errors import ClusterError
from rlinf.utils.ray_token import MODE, WHERE

_SIZE = 32
_PURPOSE = b"rlinf: secret of run "
TOLD_IN_CLEAR = (
    "Ray lets anybody into this cluster: RAY_AUTH_MODE is not `token`. The secret of the run is "
    "told to its workers in clear. To change that, put one token on all nodes (`ray get-auth-token "
    "--generate`) and export RAY_AUTH_MODE=token before `ray start` and in the driver."
)


class RunSecret(NamedTuple):
    """A new secret.

    Attributes:
        secret: the secret.
        salt: what others need to derive it; None if they cannot and have to be told.
    """

    secret: bytes
    salt: bytes | None


def new_run_secret(run_id: str, environ: Mapping[str, str] = os.environ) -> RunSecret:
    """Make the secret of a run; called when Ray has been started or joined.

    Args:
        run_id: name of the run.
        environ: variables that say whether Ray uses a token, and where it is.
    """
    # Ray sets it where it starts by itself. Without it, other nodes need not have a token.
    token = read_token(environ) if environ.get(MODE, "").lower() == "token" else None
    if token is None:
        return RunSecret(os.urandom(_SIZE), None)
    salt = os.urandom(_SIZE)
    return RunSecret(derive(token, salt, run_id), salt)


def own_run_secret(run_id: str, salt: bytes, environ: Mapping[str, str] = os.environ) -> bytes:
    """Derive the secret of a run that another process has started.

    Raises:
        ClusterError: this process has no token.
    """
    token = read_token(environ)
    if token is None:
        raise ClusterError(
            f"the driver has a token of Ray's and this node has none ({WHERE}), so that the "
            "secret of the run cannot be derived here. Put the same token on all nodes before "
            "`ray start`, readable by the user that workers run as."
        )
    return derive(token, salt, run_id)


def derive(token: bytes, salt: bytes, run_id: str) -> bytes:
    """Return the secret: HKDF with SHA-256 (RFC 5869), one block."""
    key = hmac.new(salt, token, hashlib.sha256).digest()
    return hmac.new(key, _PURPOSE + run_id.encode() + b"\x01", hashlib.sha256).digest()


def read_token(environ: Mapping[str, str] = os.environ) -> bytes | None:
    """Return Ray's token from where Ray itself looks for it, or None.

    Raises:
        ClusterError: a file was named that cannot be read.
    """
    given = environ.get("RAY_AUTH_TOKEN", "").strip()
    if given:
        return given.encode()
    named = environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        return path.read_bytes().strip() or None
    except FileNotFoundError as error:
        if not named:
            return None
        raise _unreadable(path, error) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ClusterError:
    return ClusterError(
        f"Ray's token cannot be read from {path}: {error.strerror}. Ray looks for it in {WHERE}."
    )
