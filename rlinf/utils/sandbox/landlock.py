"""Takes the right to change and to read files from this process (Linux 5.13 or later)."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Collection

from rlinf.utils.processes.lifetime import libc
from rlinf.utils.sandbox.seccomp import set_no_new_privileges

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
# Remove folder and file; make device, folder, file, socket, pipe, block device, link.
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_RENAME = 1 << 13
_ALL_TCP, _ALL_SCOPES = 0b11, 0b11


def version() -> int:
    """Return which Landlock the kernel has; 0 without one."""
    return max(0, libc().syscall(ctypes.c_long(_CREATE), None, 0, _ASK_VERSION))


def install(readable: Collection[str] | None = None) -> str | None:
    """Forbid this process, and what it starts, to change any file; only /dev/null can be written.

    Where the kernel can, TCP, abstract sockets and signals to processes outside are forbidden, too.

    Args:
        readable: files and folders that can be read, and nothing else; None leaves reading alone.

    Returns:
        None when it is in place, otherwise why it is not.
    """
    found = version()
    if not found:
        return "the kernel has no Landlock"
    handled = _CHANGES | (_RENAME if found >= 2 else 0) | (_TRUNCATE if found >= 3 else 0)
    if readable is not None:
        handled |= _EXECUTE | _READ_FILE | _READ_DIR | (_IOCTL_DEVICE if found >= 5 else 0)
    net, scoped = (_ALL_TCP if found >= 4 else 0), (_ALL_SCOPES if found >= 6 else 0)
    # Older kernels know a shorter structure.
    size = 24 if found >= 6 else 16 if found >= 4 else 8
    attributes = struct.pack("QQQ", handled, net, scoped)[:size]
    library = libc()
    rules = library.syscall(ctypes.c_long(_CREATE), attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return f"Landlock: {os.strerror(ctypes.get_errno())}"
    try:
        _allow(rules, os.devnull, handled & (_WRITE_FILE | _TRUNCATE | _READ_FILE))
        for path in readable or ():
            _allow(rules, path, _READ_FILE | _READ_DIR)
        set_no_new_privileges()
        if library.syscall(ctypes.c_long(_RESTRICT), rules, 0) != 0:
            return f"Landlock: {os.strerror(ctypes.get_errno())}"
    except OSError as error:
        return f"Landlock: {error}"
    finally:
        os.close(rules)
    return None


def _allow(rules: int, path: str, rights: int) -> None:
    """Allow something beneath a path; nothing if it is not there."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= ~_READ_DIR
        rule = struct.pack("=Qi", rights, place)
        if libc().syscall(ctypes.c_long(_ADD), rules, _BENEATH, rule, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(place)
