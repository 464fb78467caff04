"""Is this the right Python, and does it see the packages that were installed for it?"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rlinf.cli.health.finding import Finding
from rlinf.utils.extras import clone_folder, install_hint

OLDEST, NEWEST = (3, 10), (3, 12)


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check that the interpreter is one of those supported."""
    text = ".".join(map(str, version))
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return Finding("python", "ok", f"{text} ({sys.executable})")
    return Finding(
        "python",
        "fail",
        f"{text} is not supported ({sys.executable})",
        f"use Python 3.10, 3.11 or 3.12, for example: {_new_environment('python3.11')}",
    )


def check_environment(
    prefix: str = sys.prefix,
    base_prefix: str = sys.base_prefix,
    environ: Mapping[str, str] = os.environ,
) -> Finding:
    """Check that the shell's active virtual environment is the one that runs."""
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    if active and Path(active).resolve() != Path(prefix).resolve():
        return Finding(
            "environment",
            "warn",
            f"the shell has {active} active, but this command runs in {prefix}",
            f"activate the one you mean: source {prefix}/bin/activate",
        )
    if prefix == base_prefix and not environ.get("CONDA_PREFIX"):
        return Finding(
            "environment",
            "warn",
            f"no virtual environment: packages are shared with the system ({prefix})",
            _new_environment("python3"),
        )
    return Finding("environment", "ok", prefix)


def check_python_path(environ: Mapping[str, str] = os.environ) -> Finding:
    """Check that PYTHONPATH puts no other environment's packages before ours."""
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if not entries:
        return Finding("PYTHONPATH", "ok", "not set")
    foreign = [
        entry
        for entry in entries
        if Path(entry).name in ("site-packages", "dist-packages")
        and not Path(entry).resolve().is_relative_to(Path(sys.prefix).resolve())
    ]
    if foreign:
        return Finding(
            "PYTHONPATH",
            "fail",
            f"packages of another Python come first: {os.pathsep.join(foreign)}",
            "unset PYTHONPATH",
        )
    return Finding(
        "PYTHONPATH",
        "warn",
        f"{os.pathsep.join(entries)} comes before installed packages, also in workers",
        "unset PYTHONPATH unless you need it",
    )


def _new_environment(python: str) -> str:
    """Return the commands that make a virtual environment with this package."""
    root = clone_folder()
    if root is not None and (root / "Makefile").is_file():
        return f"cd '{root}' && make PYTHONS={python} setup && source .venv/bin/activate"
    return f"{python} -m venv .venv && source .venv/bin/activate && {install_hint()}"
