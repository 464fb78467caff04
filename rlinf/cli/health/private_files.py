"""Can other users of this machine read or change what is ours: token, runs, sessions of Ray?"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlinf.cli.health.finding import Finding
from rlinf.cli.health.ray_folders import (
    check_ray_folders,
    check_temporary_folder,
    is_reachable,
    ray_roots,
)
from rlinf.utils.ray_token import default_place
from rlinf.utils.runs.folders import is_run

_SHOWN = 3
"""Paths that a finding names; the rest are counted."""


def check_private_files(
    log_dir: Path, environ: Mapping[str, str] = os.environ, temporary: Path | None = None
) -> list[Finding]:
    """Look at Ray's token, the folders of runs, and the sessions in the temporary folder.

    Args:
        log_dir: Where runs write.
        environ: Environment variables.
        temporary: Folder of temporary files; that of this machine by default.
    """
    temporary = temporary or Path(tempfile.gettempdir())
    roots = ray_roots(environ, temporary)
    return [
        _token(environ),
        *_runs(log_dir),
        check_temporary_folder(temporary),
        *check_ray_folders(roots),
        _sessions(roots, temporary),
    ]


def _token(environ: Mapping[str, str]) -> Finding:
    name = "ray token"
    if environ.get("RAY_AUTH_TOKEN"):
        return Finding(
            name,
            "warn",
            "in RAY_AUTH_TOKEN, which every process of this shell inherits",
            "put it into a file of mode 600 and name that in RAY_AUTH_TOKEN_PATH",
        )
    named = environ.get("RAY_AUTH_TOKEN_PATH")
    place = Path(named) if named else default_place()
    if not place.is_file():
        return Finding(name, "ok", f"none yet; a run makes {place} for this user alone")
    for path in (place, place.parent):
        if path.stat().st_uid not in (os.geteuid(), 0):
            found = f"{path} belongs to user {path.stat().st_uid}, who can let anybody into a Ray"
            return Finding(name, "fail", found, f"remove {path}, and restart Ray")
    open_ones = [path for path in (place, place.parent) if _is_open(path)]
    if _is_open(place):
        found = f"{place} can be read by other users, who can then run code as you"
        fix = f"chmod 600 {place}; chmod 700 {place.parent}; if others were here, make a new token"
        return Finding(name, "warn", found, fix)
    if open_ones and not named:
        fix = f"chmod 700 {place.parent}"
        return Finding(name, "warn", f"{place.parent} is open to other users", fix)
    shared = [str(folder) for folder in place.resolve().parents if _is_shared(folder)]
    if shared:
        words = (
            f"other users can rename {shared[0]}'s folders, and put a token of theirs at {place}"
        )
        return Finding(name, "warn", words, f"chmod o-w {shared[0]}")
    return Finding(name, "ok", f"{place}, for this user alone")


def _runs(log_dir: Path) -> list[Finding]:
    name = "run folders"
    found = log_dir.glob("*/*/config.yaml") if log_dir.is_dir() else ()
    runs = [folder for folder in {file.parent for file in found} if is_run(folder)]
    findings = [_folders(name, runs, f"below {log_dir}")]
    shared = sorted({f for run in runs for f in (run.parent, run.parents[1]) if _is_shared(f)})
    if shared:
        shown = " ".join(map(str, shared))
        words = f"other users can rename and replace the runs in {shown}"
        findings.append(Finding(name, "warn", words, f"chmod o-w {shown}"))
    return findings


def _sessions(roots: Iterable[Path], temporary: Path) -> Finding:
    name, own = "sessions", temporary / f"rlinf-{os.getuid()}"
    if os.path.lexists(own) and (own.is_symlink() or not own.is_dir() or not _is_own(own)):
        found = f"{own} is not a folder of yours: other users have taken its name"
        fix = f"as root: rm -r {own}. Until then runs make a folder of another name, or TMPDIR's"
        return Finding(name, "warn", found, fix)
    # Ray opens each that it makes; those inside a folder of one's own are closed nevertheless.
    found = [path for root in roots for path in root.glob("session_*") if is_reachable(path)]
    where = f"in {', '.join(map(str, (own, *roots)))}"
    return _folders(name, [own, *found], where)


def _folders(name: str, folders: Iterable[Path], where: str) -> Finding:
    """Return which folders of this user others can look into or write to."""
    own = [f for f in folders if not f.is_symlink() and f.is_dir() and _is_own(f)]
    seen = sorted(folder for folder in own if _is_open(folder))
    if not seen:
        return Finding(name, "ok", f"{len(own)} {where}, for this user alone")
    writable = any(folder.stat().st_mode & stat.S_IWOTH for folder in seen)
    rest = f" and {len(seen) - _SHOWN} more" if len(seen) > _SHOWN else ""
    shown = " ".join(map(str, seen[:_SHOWN]))
    can = "change" if writable else "read"
    found = f"other users can {can} {shown}{rest}"
    return Finding(name, "warn", found, f"chmod -R go= {shown}")


def _is_own(path: Path) -> bool:
    return path.stat().st_uid == os.geteuid()


def _is_open(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o077)


def _is_shared(folder: Path) -> bool:
    """Return whether every user can rename what is in a folder."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
