"""Closes the run's sockets in forked children of its processes.

A peer is known to have ended by the end of its connections. They end when the last process that has
them open does, and a child inherits them by `fork`. So a child closes them as soon as it runs. The
same holds for the sockets of Ray, which has opened them before anything of the user's runs.
"""

from __future__ import annotations

import os
import socket
import weakref
from typing import Any, Protocol, TypeVar

REASON = "this is a forked child: only the process that was launched can exchange data of the run"

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_open_at_start: dict[int, str] = {}
"""Identity of the sockets that others had opened, by file descriptor."""

_DESCRIPTORS = "/proc/self/fd"

S = TypeVar("S", bound=socket.socket)


class Owner(Protocol):
    """Something that has to know that it is in a forked child."""

    def close_in_child(self, reason: str) -> None:
        """Called in the child before anything else runs there; must not wait for a lock."""


def close_in_child(sock: S) -> S:
    """Close a socket in forked children of this process; return it."""
    _sockets.add(sock)
    return sock


def in_child(owner: Owner) -> None:
    """Call `owner.close_in_child(reason)` in forked children of this process."""
    _owners.add(owner)


def close_open_ones_in_child() -> None:
    """Close all sockets that are open now in forked children; the standard streams are none."""
    for name in os.listdir(_DESCRIPTORS):
        identity = _identity(int(name))
        if int(name) > 2 and identity.startswith("socket:"):
            _open_at_start[int(name)] = identity


def _identity(descriptor: int) -> str:
    try:
        return os.readlink(f"{_DESCRIPTORS}/{descriptor}")
    except OSError:
        return ""


def _after_fork() -> None:
    for owner in list(_owners):
        owner.close_in_child(REASON)
    for sock in list(_sockets):
        sock.close()
    for descriptor, identity in _open_at_start.items():
        # The number may be that of another file by now.
        if _identity(descriptor) == identity:
            os.close(descriptor)
    _owners.clear()
    _sockets.clear()
    _open_at_start.clear()


os.register_at_fork(after_in_child=_after_fork)
