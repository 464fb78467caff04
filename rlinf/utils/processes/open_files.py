"""How many files this process may have open."""

from __future__ import annotations

import resource

_MANY = 1 << 20
"""What is asked for where there is no limit to ask up to."""


def allow_open_files(needed: int) -> int:
    """Raise the limit of open files of this process as far as it goes, if it is below `needed`.

    Returns:
        How many it may have open now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max(_MANY, needed)
    most = _MANY if hard == resource.RLIM_INFINITY else hard
    if needed <= soft or most <= soft:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
