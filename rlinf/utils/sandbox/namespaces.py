"""A world of its own for the launcher of a sandbox: no network, no other processes (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from rlinf.utils.processes.lifetime import libc

_IPC, _USER, _PID, _NET = 0x08000000, 0x10000000, 0x20000000, 0x40000000


def enter() -> tuple[str | None, bool]:
    """Move this process into new namespaces: it goes on as their process 1.

    The caller's process stays outside, waits, and ends as the inner one does. When process 1 ends,
    the kernel kills everything that was started in the namespace.

    Returns:
        None when it is done, otherwise why it is not; and whether users are separate, too.
    """
    problem, own_users = _unshare()
    if problem is not None:
        return problem, False
    inner = os.fork()
    if inner:
        _, status = os.waitpid(inner, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    # Outside processes have no number in here, so there is no parent to compare with.
    libc().prctl(1, signal.SIGKILL, 0, 0, 0)
    return None, own_users


def _unshare() -> tuple[str | None, bool]:
    uid, gid = os.geteuid(), os.getegid()
    library = libc()
    kinds = _PID | _NET | _IPC
    if uid == 0 and library.unshare(kinds) == 0:
        return None, False
    if library.unshare(kinds | _USER) != 0:
        return f"unshare: {os.strerror(ctypes.get_errno())}", False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError as error:
        return f"user namespace: {error}", False
    return None, True
