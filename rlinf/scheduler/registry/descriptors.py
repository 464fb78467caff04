"""Sees to it that the driver may have one open file for each member of a run."""

from __future__ import annotations

import sys

from rlinf.utils.processes.open_files import allow_open_files

_SPARE = 512
"""What a driver has open besides: its own files, data connections, and those of Ray."""


def allow_descriptors(members: int) -> bool:
    """Raise this process's limit of open files if a run of this size needs it.

    Returns:
        Whether the run fits; if not, a warning has said what to change.
    """
    needed = members + _SPARE
    most = allow_open_files(needed)
    if needed <= most:
        return True
    print(
        f"warning: the driver may have {most} files open, and a run of {members} processes needs "
        f"about {needed}: raise the limit of its user (ulimit -Hn, or LimitNOFILE of its service)",
        file=sys.stderr,
        flush=True,
    )
    return False
