"""The code of a run: commit, uncommitted changes and packages, in `code/` of the run's folder."""

from __future__ import annotations

import json
import platform
import re
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from rlinf.utils.disk import tolerate_disk_errors
from rlinf.utils.runs.git_state import Git, GitUnknown

FOLDER, FILE, PACKAGES = "code", "code.json", "packages.txt"
SCHEMA = 1
OWN, CURRENT = "rlinf", "current_folder"
"""Whose code a record has: that of this package, and that of the user."""
SECONDS = 3.0
"""How long a run waits for git, in all."""
_HEADER = re.compile(r"^(Name|Version): *(.+?) *$", re.MULTILINE)


def record_code(run: Path) -> None:
    """Write down the code that a run begins with.

    A run that goes on in its folder adds a record, `code/2/`, and keeps the first. Without git, or
    outside of a repository, the record says so; a full disk costs a warning.

    Args:
        run: folder of the run, which nobody else writes to.
    """
    with tolerate_disk_errors(f"{run / FOLDER}, the record of the code"):
        folder = run / FOLDER / str(1 + max(_numbers(run), default=0))
        folder.mkdir(parents=True)
        (folder / PACKAGES).write_text("".join(f"{line}\n" for line in installed_packages()))
        facts = {
            "schema": SCHEMA,
            "time": time.time(),
            "python": platform.python_version(),
            "executable": sys.executable,
            **_sources(folder),
        }
        (folder / FILE).write_text(json.dumps(facts, indent=2) + "\n")


def git_facts(run: Path) -> dict[str, Any]:
    """Return commit, branch and whether there were changes, of the newest record of a run.

    Returns:
        Those of this package's repository; under `current_folder` those of the user's, if it is
        another one. Empty if git knows neither.
    """
    newest = max(_numbers(run), default=0)
    try:
        known = json.loads((run / FOLDER / str(newest) / FILE).read_text())
    except (OSError, ValueError):
        return {}
    own, current = (_headline(known.get(name)) for name in (OWN, CURRENT))
    return {**own, CURRENT: current} if current else own


def installed_packages() -> list[str]:
    """Return `name==version` of all packages that can be imported, by name."""
    found: dict[str, str] = {}
    for package in metadata.distributions():
        # `package.metadata` parses the whole description, which takes ten times as long.
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
        known = dict(reversed(_HEADER.findall(text.partition("\n\n")[0])))
        if "Name" in known:
            key = re.sub(r"[-_.]+", "-", known["Name"]).lower()
            # The first on the path is the one that is imported.
            found.setdefault(key, f"{known['Name']}=={known.get('Version', '?')}")
    return [found[key] for key in sorted(found)]


def _numbers(run: Path) -> list[int]:
    """Return the numbers of the records of a run."""
    names = [path.name for path in (run / FOLDER).glob("*")]
    return [int(name) for name in names if name.isdecimal()]


def _sources(folder: Path) -> dict[str, Any]:
    """Write the patches and return what git knows, of both sources."""
    git = Git(SECONDS)
    package = Path(__file__).resolve().parents[2] / "__init__.py"
    own: dict[str, Any]
    try:
        own_top = git.top(package.parent) if git.tracks(package) else None
    except GitUnknown as error:
        own_top, own = None, {"folder": str(package.parent), "reason": str(error)}
    else:
        own = {"folder": str(package.parent), "reason": "installed, not from a repository"}
    if own_top is not None:
        own = _of_repository(git, own_top, folder / f"{OWN}.patch")
    here = Path.cwd()
    try:
        top = git.top(here)
    except GitUnknown as error:
        return {OWN: own, CURRENT: {"folder": str(here), "reason": str(error)}}
    if top == own_top:
        return {OWN: own, CURRENT: {"folder": str(here), "same_as": OWN}}
    return {OWN: own, CURRENT: _of_repository(git, top, folder / f"{CURRENT}.patch")}


def _of_repository(git: Git, top: Path, patch: Path) -> dict[str, Any]:
    try:
        state = git.state(top)
    except GitUnknown as error:
        return {"folder": str(top), "reason": str(error)}
    if state.patch:
        patch.write_bytes(state.patch)
    return {
        "folder": str(top),
        "commit": state.commit,
        "branch": state.branch,
        "dirty": state.dirty,
        "patch": patch.name if state.patch else None,
        "changed": state.changed,
        "untracked": state.untracked,
        "left_out": state.left_out,
    }


def _headline(source: dict[str, Any] | None) -> dict[str, Any]:
    names = ("commit", "branch", "dirty")
    if source is None or not all(name in source for name in names):
        return {}
    return {name: source[name] for name in names}
