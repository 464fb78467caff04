"""Can other users put something else in the place of what Ray keeps in temporary folders?"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from rlinf.cli.health.finding import Finding

_ROOT = 0
_ADDRESS_FILE = "ray_current_cluster"
"""Where `ray.init(address="auto")` reads the address of a Ray."""


def ray_roots(environ: Mapping[str, str] = os.environ, temporary: Path | None = None) -> list[Path]:
    """Return the folders in which Rays of this user keep, or would keep, their sessions.

    Args:
        environ: Environment variables.
        temporary: Folder of temporary files; that of this machine by default.
    """
    named = environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or temporary or "/tmp"
    roots = [Path(named) / "ray", *_roots_of_processes()]
    return list(dict.fromkeys(roots))


def check_temporary_folder(temporary: Path | None = None) -> Finding:
    """Check that other users cannot rename what is in the folder of temporary files.

    Args:
        temporary: That folder; the one of this machine by default.
    """
    name = "temporary folder"
    folder = temporary or Path(tempfile.gettempdir())
    who = _who_can_rename_in(folder)
    if who is None:
        return Finding(name, "ok", f"{folder}: nobody can rename what is yours in it")
    fix = (
        f"as root: chown root {folder}; chmod 1777 {folder}. Or use one of your own: "
        "mkdir -m 700 ~/tmp; export TMPDIR=~/tmp"
    )
    return Finding(name, "warn", f"{folder}: {who} can rename and replace what is yours in it", fix)


def check_ray_folders(roots: list[Path]) -> list[Finding]:
    """Check that other users cannot replace the sessions of Rays, nor say where a Ray is.

    Args:
        roots: Folders that sessions are, or would be, in.
    """
    findings = [finding for root in roots for finding in _problems(root)]
    there = [str(root) for root in roots if root.is_dir()]
    about = f"{', '.join(there)}: nobody can replace your sessions" if there else "none yet"
    return findings or [Finding("ray folders", "ok", about)]


def is_reachable(path: Path) -> bool:
    """Return whether other users can pass through all folders above a path."""
    return all(folder.stat().st_mode & 0o011 for folder in path.resolve().parents)


def _problems(root: Path) -> Iterator[Finding]:
    name = "ray folders"
    elsewhere = (
        "start Ray inside a folder of your own, since it opens its own to all: "
        "mkdir -m 700 /tmp/ray-$USER; ray start --temp-dir=/tmp/ray-$USER/ray"
    )
    if not os.path.lexists(root) or not is_reachable(root):
        return
    link = os.lstat(root)
    if link.st_uid not in (os.geteuid(), _ROOT):
        what = f"leads to {os.readlink(root)} and " if stat.S_ISLNK(link.st_mode) else ""
        found = (
            f"{root} {what}belongs to user {link.st_uid}, who decides what a Ray finds there and "
            "can replace your sessions"
        )
        yield Finding(name, "warn", found, f"as root: rm -r {root}. Or {elsewhere}")
        return
    if not root.is_dir():
        yield Finding(name, "warn", f"{root} is not a folder: Ray cannot start there", f"rm {root}")
        return
    who = _who_can_rename_in(root.resolve())
    if who is not None:
        found = f"{root}: {who} can rename and replace your sessions, and their sockets, in it"
        before = "" if root.stat().st_uid == os.geteuid() else "as root: "
        fix = f"{before}chmod 1777 {root}; if Ray is started again: {elsewhere}"
        yield Finding(name, "warn", found, fix)
    says = root / _ADDRESS_FILE
    if os.path.lexists(says) and os.lstat(says).st_uid not in (os.geteuid(), _ROOT):
        found = (
            f"{says} belongs to user {os.lstat(says).st_uid}: the address `auto` leads to a Ray of "
            "theirs, which is shown your token"
        )
        yield Finding(name, "warn", found, "name the host and port of your Ray in RAY_ADDRESS")


def _who_can_rename_in(folder: Path) -> str | None:
    """Return who else can rename what a user has in a folder; None if nobody can."""
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), _ROOT):
        return f"user {found.st_uid}"
    if found.st_mode & stat.S_ISVTX:
        return None
    if found.st_mode & stat.S_IWOTH:
        return "every user"
    return f"everybody in group {found.st_gid}" if found.st_mode & stat.S_IWGRP else None


def _roots_of_processes() -> Iterator[Path]:
    """Yield where Rays of this user that are running have their sessions."""
    for process in psutil.process_iter(["name", "uids", "cmdline"]):
        facts = process.info
        if facts["name"] == "raylet" and facts["uids"] and facts["uids"].effective == os.geteuid():
            for word in facts["cmdline"] or ():
                if word.startswith("--temp_dir="):
                    yield Path(word.partition("=")[2])
