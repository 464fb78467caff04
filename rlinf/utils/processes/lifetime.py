"""Nobody survives: children die with their parent, and whole families are killed (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
_KILL_SECONDS = 10.0
"""How long a family that goes on growing is pursued."""


def libc() -> ctypes.CDLL:
    """Return the C library of this process, with errno."""
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends.

    Args:
        parent: pid of the parent; if it is gone already, this process ends now.
    """
    libc().prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends: none gets away."""
    libc().prctl(_SET_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> set[int]:
    """Children of a process, their children, and so on; those that ended but linger included."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry))
    found: set[int] = set()
    near = [pid]
    while near:
        near = [child for one in near for child in children.get(one, []) if child not in found]
        found.update(near)
    return found


def kill_descendants(pid: int) -> None:
    """Kill everything that a process has started, until nothing is left to kill."""
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_SECONDS
    while (found := descendants(pid) - killed) and time.monotonic() < deadline:
        for one in found:
            _signal(one, signal.SIGKILL)
        killed |= found


def kill_family(pid: int) -> None:
    """Kill a process and everything that it has started.

    A family whose head called `adopt_orphans` is complete, double forks and sessions of their own
    notwithstanding. The head is stopped first, so that it starts no more.
    """
    _signal(pid, signal.SIGSTOP)
    kill_descendants(pid)
    _signal(pid, signal.SIGKILL)


def _parent(pid: str) -> int | None:
    try:
        stat = Path("/proc", pid, "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name of the program, in brackets, may hold anything.
    return int(stat.rpartition(")")[2].split()[1])


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
