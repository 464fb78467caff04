"""How much shared memory a node may use for transfers: what the user says, else what is there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rlinf.scheduler.env_vars import ClusterEnvVar

LIMIT_VARIABLE = ClusterEnvVar.TRANSFER_MEMORY.full_name
"""Environment variable that sets the limit, in bytes."""


def given_limit() -> int | None:
    """Return the limit that the environment sets; None if it sets none.

    Raises:
        ValueError: RLINF_TRANSFER_MEMORY is not a positive number of bytes.
    """
    text = os.environ.get(LIMIT_VARIABLE)
    if text is None:
        return None
    if not text.isdecimal() or not int(text):
        raise ValueError(
            f"{LIMIT_VARIABLE}={text!r} must be a positive number of bytes, such as {8 << 30}"
        )
    return int(text)


def available_memory(cgroup: str = "/sys/fs/cgroup") -> int:
    """Return the bytes that the machine, or the cgroup of its container, has available."""
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":", 1) for line in file)
    available = int(lines["MemAvailable"].split()[0]) << 10
    folder = Path(cgroup)
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2, or no limit ("max")
        free = int((folder / "memory.max").read_text())
        free -= int((folder / "memory.current").read_text())
        # The kernel drops files that it has cached as soon as somebody needs the memory.
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        available = min(available, free + int(stat.get("inactive_file", 0)))
    return max(available, 0)
