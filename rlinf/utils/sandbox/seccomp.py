"""A filter of system calls: no sockets to others, no new processes, no signals (Linux)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from dataclasses import dataclass
from typing import Literal

from rlinf.utils.processes.lifetime import libc

NUMBERS: dict[str, tuple[int | None, int | None]] = {
    # network
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "io_uring_setup": (425, 425),
    "mq_open": (240, 180),
    # processes
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    # signals to others, and what is as good as one
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "ptrace": (101, 117),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "prlimit64": (302, 261),
    "prctl": (157, 167),
    # the system
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "syslog": (103, 116),
    "modify_ldt": (154, None),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    # attributes of files, which Landlock leaves alone
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    # files themselves
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "creat": (85, None),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
}
"""System calls by name: their number on x86_64 and on aarch64, None where there is no such call."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""Machine to its column in `NUMBERS`, its mark in the filter's data, and the call `seccomp`."""

_X32_CALLS = 0x40000000
_CLONE_THREAD = 0x00010000
_SET_DEATH_SIGNAL = 1
_UNIX_DOMAIN, _NOT_STREAM = 1, 0b1110
_SET_FLAGS = 4
_FCNTL_REFUSED = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE and F_NOTIFY: signals when a file is ready."""
_IOCTL_REFUSED = (0x5452, 0x8901, 0x8902, 0x540E, 0x5410, 0x5412, 0x541C)
"""FIOASYNC, FIOSETOWN and SIOCSPGRP, which do the same; and what types into terminals: TIOCSCTTY,
TIOCSPGRP, TIOCSTI and TIOCLINUX."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


@dataclass(frozen=True)
class Rule:
    """A system call that is refused, always or for some arguments.

    Attributes:
        call: its name.
        error: what the caller gets as errno.
        argument: position of the argument that decides; None refuses always.
        when: refuse when the argument has any of the bits, none of them, equals the value, or does
            not.
        value: bits or value, 32 of them.
        only: (position, value) of another argument; with another value the call is not refused.
    """

    call: str
    error: int = errno.EPERM
    argument: int | None = None
    when: Literal["any", "none", "equal", "other"] = "any"
    value: int = 0
    only: tuple[int, int] | None = None


_BASE = [
    Rule("socket", errno.EACCES),
    # A pair of connected streams reaches nobody, and asyncio needs one. Datagrams can be sent to an
    # address of any socket outside.
    Rule("socketpair", errno.EACCES, argument=0, when="other", value=_UNIX_DOMAIN),
    Rule("socketpair", errno.EACCES, argument=1, when="any", value=_NOT_STREAM),
    Rule("sendto", errno.EACCES, argument=5, when="any", value=0xFFFFFFFF),
    Rule("io_uring_setup"),
    *(Rule("fcntl", argument=1, when="equal", value=command) for command in _FCNTL_REFUSED),
    Rule("fcntl", argument=2, when="any", value=os.O_ASYNC, only=(1, _SET_FLAGS)),
    *(Rule("ioctl", argument=1, when="equal", value=command) for command in _IOCTL_REFUSED),
    Rule("sched_setaffinity", argument=0, when="any", value=0xFFFFFFFF),
    Rule("fork"),
    Rule("vfork"),
    Rule("clone", argument=0, when="none", value=_CLONE_THREAD),
    # The C library then falls back to clone, whose flags can be read.
    Rule("clone3", errno.ENOSYS),
    Rule("prlimit64", argument=0, when="any", value=0xFFFFFFFF),
    Rule("prctl", argument=0, when="equal", value=_SET_DEATH_SIGNAL),
]
_ALWAYS = """connect bind listen sendmsg sendmmsg mq_open kcmp process_madvise process_mrelease
move_pages migrate_pages setpriority ioprio_set sched_setparam sched_setscheduler sched_setattr
open_tree move_mount fsopen fspick mount_setattr open_by_handle_at fanotify_init syslog modify_ldt
execve execveat kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal
pidfd_open pidfd_getfd ptrace process_vm_readv process_vm_writev mount umount2 pivot_root chroot
unshare setns bpf perf_event_open userfaultfd add_key request_key keyctl shmget msgget semget chmod
fchmod fchmodat fchmodat2 chown lchown fchown fchownat utime utimes futimesat utimensat setxattr
lsetxattr fsetxattr removexattr lremovexattr fremovexattr""".split()
_FILES = [
    Rule("open", errno.EACCES, argument=1, when="any", value=_WRITES),
    Rule("openat", errno.EACCES, argument=2, when="any", value=_WRITES),
    # Its flags are behind a pointer; callers fall back to openat.
    Rule("openat2", errno.ENOSYS),
]
_ALWAYS_FILES = """creat truncate ftruncate fallocate rename renameat renameat2 mkdir mkdirat rmdir
unlink unlinkat link linkat symlink symlinkat mknod mknodat""".split()


def rules(files: bool) -> list[Rule]:
    """Return what is refused.

    Args:
        files: Refuse to write and to change files, too.
    """
    chosen = _BASE + [Rule(name) for name in _ALWAYS]
    return chosen + (_FILES + [Rule(name) for name in _ALWAYS_FILES] if files else [])


def install(files: bool) -> str | None:
    """Put the filter on all threads of this process; there is no way back.

    Args:
        files: Refuse to write and to change files, too.

    Returns:
        None when it is in place, otherwise why it is not.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURES:
        return f"there is no filter for {sys.platform} on {machine}"
    column, mark, call = _ARCHITECTURES[machine]
    program = assemble(rules(files), column, mark)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    library = libc()
    set_no_new_privileges()
    set_filter, all_threads = 1, 1
    done = library.syscall(ctypes.c_long(call), set_filter, all_threads, header)
    if done != 0:
        return f"seccomp: {os.strerror(ctypes.get_errno()) if done < 0 else 'threads differ'}"
    return None


def set_no_new_privileges() -> None:
    """Give up what set-user-id programs could give; the kernel asks for it before a filter."""
    libc().prctl(38, 1, 0, 0, 0)


def assemble(chosen: list[Rule], column: int, mark: int) -> bytes:
    """Return the filter in the kernel's format.

    Args:
        chosen: What to refuse.
        column: Which numbers of `NUMBERS` to use.
        mark: The architecture whose calls these are; those of another end the process.
    """
    code = [_op(_LOAD, 4), _op(_EQUAL, mark, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, 0)]
    if column == 0:
        code += [_op(_AT_LEAST, _X32_CALLS, 0, 1), _op(_RETURN, _KILL)]
    for rule in chosen:
        number = NUMBERS[rule.call][column]
        if number is not None:
            code += _block(rule, number)
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def _block(rule: Rule, number: int) -> list[bytes]:
    """Return the instructions of a rule; the number of the call is loaded before and after."""
    refuse = _op(_RETURN, _REFUSE | rule.error)
    if rule.argument is None:
        return [_op(_EQUAL, number, 0, 1), refuse]
    test = _BITS if rule.when in ("any", "none") else _EQUAL
    met, unmet = (1, 0) if rule.when in ("none", "other") else (0, 1)
    body = [_op(_LOAD, 16 + 8 * rule.argument), _op(test, rule.value, met, unmet), refuse]
    if rule.only is not None:
        position, value = rule.only
        body = [_op(_LOAD, 16 + 8 * position), _op(_EQUAL, value, 0, len(body)), *body]
    return [_op(_EQUAL, number, 0, len(body) + 1), *body, _op(_LOAD, 0)]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
