"""A world of its own for the launcher of a sandbox: no network, no other processes (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from rlinf.utils.processes.lifetime import libc

_MOUNT, _IPC, _USER = 0x00020000, 0x08000000, 0x10000000
_PID, _NET = 0x20000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18


@dataclass(frozen=True)
class Entered:
    """Which namespaces a process has for itself.

    Attributes:
        problem: why it has none of processes and network; None when it has.
        users: whether it has one of users.
        mounts: whether it has one of mounts, and may change it.
    """

    problem: str | None = None
    users: bool = False
    mounts: bool = False


def enter() -> Entered:
    """Move this process into new namespaces: it goes on as their process 1.

    The caller's process stays outside, waits, and ends as the inner one does. When process 1 ends,
    the kernel kills everything that was started in the namespace.
    """
    entered = _unshare()
    if entered.problem is not None:
        return entered
    inner = os.fork()
    if inner:
        _, status = os.waitpid(inner, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    # Outside processes have no number in here, so there is no parent to compare with.
    libc().prctl(1, signal.SIGKILL, 0, 0, 0)
    return entered


def _unshare() -> Entered:
    uid, gid = os.geteuid(), os.getegid()
    library = libc()
    kinds = _PID | _NET | _IPC
    if uid == 0:
        if library.unshare(kinds | _MOUNT) == 0:
            return Entered(mounts=True)
        if library.unshare(kinds) == 0:
            return Entered()
        # In a namespace of users root could not become another one.
        return Entered(f"unshare: {os.strerror(ctypes.get_errno())}")
    if library.unshare(kinds | _USER) != 0:
        return Entered(f"unshare: {os.strerror(ctypes.get_errno())}")
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError as error:
        return Entered(f"user namespace: {error}")
    return Entered(users=True)


def open_way(paths: Collection[str]) -> None:
    """Let every user reach some folders whose parents are closed to others.

    A closed parent, such as /root, is covered by an empty folder, for this mount namespace alone,
    in which only these folders are.

    Args:
        paths: absolute paths of files and folders.

    Raises:
        OSError: it cannot be done.
    """
    closed: dict[Path, list[Path]] = {}
    for path in sorted({Path(path).resolve() for path in paths}):
        parent = closed_parent(path)
        above = closed.setdefault(parent, []) if parent is not None else None
        if above is not None and not any(path.is_relative_to(other) for other in above):
            above.append(path)
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    for parent, inside in closed.items():
        held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in inside]
        _mount("tmpfs", str(parent), "tmpfs", 0, "mode=755,size=64k")
        for path, descriptor in held:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if stat.S_ISDIR(os.fstat(descriptor).st_mode) else path.touch()
            _mount(f"/proc/self/fd/{descriptor}", str(path), "", _BIND | _RECURSIVE)
            os.close(descriptor)


def closed_parent(path: Path) -> Path | None:
    """Return the topmost folder above a path that others cannot pass through; None without one."""
    return next((p for p in reversed(path.parents) if not p.stat().st_mode & 0o001), None)


def readable_to_all(paths: Iterable[str]) -> bool:
    """Return whether a stranger can read some files and folders."""
    for path in (Path(path).resolve() for path in paths):
        needed = 0o005 if path.is_dir() else 0o004
        if closed_parent(path) is not None or path.stat().st_mode & needed != needed:
            return False
    return True


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [part.encode() for part in (source, target, kind, data)]
    if libc().mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        raise OSError(ctypes.get_errno(), f"mount: {os.strerror(ctypes.get_errno())}", target)
