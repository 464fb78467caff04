"""Which files a program in a sandbox may read: the interpreter, its libraries, and a few facts."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_FACTS = (
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/sys/devices/system/cpu",
)


def keep_installed_packages() -> None:
    """Let programs import the standard library and installed packages, and nothing else."""
    roots = [path for path in _standard_library() if path]
    sys.path[:] = [
        path
        for path in sys.path
        if any(path.startswith(root) for root in roots)
        or path.endswith((".zip", "site-packages", "dist-packages"))
    ]
    sys.path_importer_cache.clear()


def python_paths() -> list[str]:
    """Return the folders of the interpreter and its packages, once others are off `sys.path`."""
    places = [*_standard_library(), str(Path(sys.base_prefix, "lib")), *sys.path]
    return [path for path in dict.fromkeys(places) if os.path.exists(path)]


def readable_paths() -> list[str]:
    """Return all that a program may read."""
    return [*python_paths(), *_LIBRARIES, *_FACTS]


def _standard_library() -> list[str]:
    paths = sysconfig.get_paths()
    return [paths["stdlib"], paths["platstdlib"], str(Path(os.__file__).parent)]
