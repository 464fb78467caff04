"""Takes from this process what it does not need: network, processes, signals, files, rights."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rlinf.utils.processes.lifetime import libc
from rlinf.utils.sandbox import landlock, seccomp

GUARANTEES = ("network", "processes", "signals", "files", "reading", "privileges")
"""What can be taken:

- `network`: to send anything to a socket of another process, on this machine or elsewhere;
- `processes`: to start processes;
- `signals`: to signal other processes, or to change their limits, priorities and memory;
- `files`: to change files;
- `reading`: to read files other than the interpreter and its libraries, which includes the
  environment and the memory of other processes;
- `privileges`: to act as root.
"""

_OF_A_PROCESS = ("network", "processes", "signals", "files")
"""What is taken from processes that run our own code, as their own user."""

LAYERS = ("namespaces", "user", "landlock", "seccomp")
"""What takes it. `namespaces` and `user` are for programs in a sandbox of their own only."""


@dataclass
class Enforced:
    """What is guaranteed, and why something is not.

    Attributes:
        by: guarantee to the layers that enforce it, each of them alone.
        problems: layer to the reason why it is not in place.
        asked: guarantees that were asked for.
    """

    by: dict[str, list[str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    asked: Collection[str] = GUARANTEES

    def add(self, layer: str, guarantees: Collection[str]) -> None:
        """Note that a layer is in place."""
        for name in guarantees:
            self.by.setdefault(name, []).append(layer)

    @property
    def missing(self) -> list[str]:
        """Guarantees that were asked for and that nothing enforces."""
        return [name for name in self.asked if not self.by.get(name)]

    def __str__(self) -> str:
        held = [
            f"no {name} ({', '.join(self.by[name])})" for name in GUARANTEES if self.by.get(name)
        ]
        words = ", ".join(held) or "nothing is enforced"
        if self.missing:
            why = "; ".join(f"{layer}: {reason}" for layer, reason in self.problems.items())
            words += f"; NOT enforced: no {', no '.join(self.missing)} ({why})"
        return words


def confine(layers: Collection[str] = LAYERS, readable: Collection[str] | None = None) -> Enforced:
    """Confine this process and whatever it becomes; there is no way back.

    Threads, and writing to pipes that are open, stay possible.

    Args:
        layers: Which of `landlock` and `seccomp` to use.
        readable: Files and folders that can be read; None leaves reading alone.
    """
    enforced = Enforced(asked=GUARANTEES if readable is not None else _OF_A_PROCESS)
    has_landlock = False
    if "landlock" in layers:
        problem = landlock.install(readable)
        if problem is None:
            has_landlock = True
            enforced.add("landlock", ("files",) if readable is None else ("files", "reading"))
        else:
            enforced.problems["landlock"] = problem
    if "seccomp" in layers:
        problem = seccomp.install(files=not has_landlock)
        if problem is None:
            kept = ("network", "processes", "signals")
            enforced.add("seccomp", kept if has_landlock else (*kept, "files"))
        else:
            enforced.problems["seccomp"] = problem
    return enforced


def keep_descriptors(count: int) -> None:
    """Close all file descriptors but the first ones, whatever their number.

    Args:
        count: How many stay open.
    """
    close_range = 436
    if libc().syscall(ctypes.c_long(close_range), count, ctypes.c_uint(0xFFFFFFFF), 0) != 0:
        # Before Linux 5.9. The folder itself is among what is listed, and closed by then.
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= count:
                with contextlib.suppress(OSError):
                    os.close(int(name))


def limit_resources(limits: Mapping[str, int]) -> None:
    """Set limits of the kernel, soft and hard.

    Args:
        limits: Name, as in `RLIMIT_<name>`, to value; one that is lower already stays.
    """
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def drop_capabilities() -> None:
    """Give up the powers of root; files of root stay readable to root."""
    header = struct.pack("Ii", 0x20080522, 0)
    if libc().capset(header, bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
