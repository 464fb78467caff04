"""Sees to it that the driver may have one open file for each member of a run."""

from __future__ import annotations

import resource
import sys

_SPARE = 512
"""What a driver has open besides: its own files, data connections, and those of Ray."""
_MANY = 1 << 20


def allow_descriptors(members: int) -> bool:
    """Raise this process's limit of open files if a run of this size needs it.

    Returns:
        Whether the run fits; if not, a warning has said what to change.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = members + _SPARE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return True
    most = _MANY if hard == resource.RLIM_INFINITY else hard
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if needed <= most:
        return True
    print(
        f"warning: the driver may have {most} files open, and a run of {members} processes needs "
        f"about {needed}: raise the limit of its user (ulimit -Hn, or LimitNOFILE of its service)",
        file=sys.stderr,
        flush=True,
    )
    return False
