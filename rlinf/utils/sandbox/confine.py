"""Takes from this process what it does not need: network, processes, signals, files, memory."""

from __future__ import annotations

import ctypes
import resource
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rlinf.utils.processes.lifetime import libc
from rlinf.utils.sandbox import landlock, seccomp

GUARANTEES = ("network", "processes", "signals", "files")
"""What can be taken: to reach the network, to start processes, to signal or change other
processes, to change files."""

LAYERS = ("namespaces", "user", "landlock", "seccomp")
"""What takes it. `namespaces` and `user` are for programs in a sandbox of their own only."""


@dataclass
class Enforced:
    """What is guaranteed, and why something is not.

    Attributes:
        by: guarantee to the layers that enforce it, each of them alone.
        problems: layer to the reason why it is not in place.
    """

    by: dict[str, list[str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, layer: str, guarantees: Collection[str]) -> None:
        """Note that a layer is in place."""
        for name in guarantees:
            self.by.setdefault(name, []).append(layer)

    @property
    def missing(self) -> list[str]:
        """Guarantees that nothing enforces."""
        return [name for name in GUARANTEES if not self.by.get(name)]

    def __str__(self) -> str:
        held = [f"no {name} ({', '.join(self.by[name])})" for name in GUARANTEES if name in self.by]
        words = ", ".join(held) or "nothing is enforced"
        if self.missing:
            why = "; ".join(f"{layer}: {reason}" for layer, reason in self.problems.items())
            words += f"; NOT enforced: no {', no '.join(self.missing)} ({why})"
        return words


def confine(layers: Collection[str] = LAYERS) -> Enforced:
    """Confine this process and whatever it becomes; there is no way back.

    Reading files, threads, and writing to pipes that are open stay possible.

    Args:
        layers: Which of `landlock` and `seccomp` to use.
    """
    enforced = Enforced()
    has_landlock = False
    if "landlock" in layers:
        problem, signals = landlock.install()
        if problem is None:
            has_landlock = True
            enforced.add("landlock", ("files", "signals") if signals else ("files",))
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
