"""Takes the right to change files from this process, without privileges (Linux 5.13 or later)."""

from __future__ import annotations

import ctypes
import os
import struct

from rlinf.utils.processes.lifetime import libc
from rlinf.utils.sandbox.seccomp import set_no_new_privileges

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_BENEATH = 1

_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# Remove folder and file; make device, folder, file, socket, pipe, block device, link.
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_RENAME = 1 << 13
_ALL_TCP, _ALL_SCOPES = 0b11, 0b11


def version() -> int:
    """Return which Landlock the kernel has; 0 without one."""
    return max(0, libc().syscall(ctypes.c_long(_CREATE), None, 0, _ASK_VERSION))


def install() -> tuple[str | None, bool]:
    """Forbid this process, and what it starts, to change any file; only /dev/null can be written.

    Where the kernel can, TCP and signals to processes outside are forbidden, too.

    Returns:
        None when it is in place, otherwise why it is not; and whether signals are forbidden.
    """
    found = version()
    if not found:
        return "the kernel has no Landlock", False
    handled = _CHANGES | (_RENAME if found >= 2 else 0) | (_TRUNCATE if found >= 3 else 0)
    net, scoped = (_ALL_TCP if found >= 4 else 0), (_ALL_SCOPES if found >= 6 else 0)
    # Older kernels know a shorter structure.
    size = 24 if found >= 6 else 16 if found >= 4 else 8
    attributes = struct.pack("QQQ", handled, net, scoped)[:size]
    library = libc()
    rules = library.syscall(ctypes.c_long(_CREATE), attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return f"Landlock: {os.strerror(ctypes.get_errno())}", False
    null = os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", handled & (_WRITE_FILE | _TRUNCATE), null)
        set_no_new_privileges()
        if (
            library.syscall(ctypes.c_long(_ADD), rules, _BENEATH, rule, 0) != 0
            or library.syscall(ctypes.c_long(_RESTRICT), rules, 0) != 0
        ):
            return f"Landlock: {os.strerror(ctypes.get_errno())}", False
    finally:
        os.close(null)
        os.close(rules)
    return None, bool(scoped)
