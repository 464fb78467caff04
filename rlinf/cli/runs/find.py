"""Finds runs: those below a folder, and the one that a user has typed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rlinf.cli.runs.names import DEFAULT
from rlinf.config.suggest import near
from rlinf.utils.runs.folders import CHECKPOINTS, find_run, is_run, shown
from rlinf.utils.runs.lock import FILE as LOCK
from rlinf.utils.runs.summary import FILE as SUMMARY

_DEPTH = 4
"""Levels below a folder that are looked at: `logs/<experiment>/<run>` needs two."""
_NEAR, _NEAR_DEPTH = 3, 2


def has_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, also of one that ended before it wrote its config.

    Args:
        folder: any folder.
    """
    return is_run(folder) or _has_marks(folder)


def _has_marks(folder: Path) -> bool:
    """Return whether a folder has what nothing but a run has."""
    return (folder / SUMMARY).is_file() or (folder / LOCK).is_file()


def find_runs(
    top: Path, unreadable: Callable[[OSError], None] | None = None, depth: int = _DEPTH
) -> list[Path]:
    """Return the folders of runs in a folder, sorted, and the folder itself if it is one.

    What is inside of a run, such as its evaluations, counts only if the run is the folder given.

    Args:
        top: folder of logs, of an experiment, or of a run.
        unreadable: is told of each folder that cannot be read.
        depth: levels below the folder that are looked at.
    """
    top = absolute(top)
    found = [top] if has_run(top) else []
    # Inside of a run there may be folders of code, with configurations of their own.
    counts = _has_marks if found else has_run
    for root, folders, _ in os.walk(top, onerror=unreadable):
        inside = [Path(root, name) for name in folders if not _is_passed_over(Path(root, name))]
        runs = [folder for folder in inside if counts(folder)]
        found += runs
        deeper = len(Path(root).relative_to(top).parts) + 1 < depth
        folders[:] = [folder.name for folder in inside if deeper and folder not in runs]
    return sorted(found)


def _is_passed_over(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name == CHECKPOINTS or folder.is_symlink()


def absolute(path: Path) -> Path:
    """Return a path from the root; a link to a run, such as `latest`, becomes that run's folder."""
    path = Path(os.path.abspath(path))
    if not path.is_symlink() or not has_run(path):
        return path
    target = path.readlink()
    # Links above it are kept: they are what the user types.
    return path.parent / target if len(target.parts) == 1 else path.resolve()


def chosen_run(text: str) -> Path:
    """Return the folder of the run that a user means: that folder, or an experiment's newest run.

    Raises:
        ValueError: there is no run.
    """
    folder = absolute(find_run(text))
    if not has_run(folder):
        raise ValueError(not_a_run(text))
    return folder


def not_a_run(text: str | Path) -> str:
    """Say that there is no run where a user has typed one."""
    is_folder = Path(text).is_dir()
    what = f"{text} is not the folder of a run" if is_folder else f"there is no run at {text}"
    return f"{what}; {_near_runs(Path(text)) or '`rlinf runs FOLDER` lists the runs in a folder'}"


def _near_runs(path: Path) -> str:
    """Name runs or experiments that a user may have meant; empty if there are none nearby."""
    tops = (folder for folder in (path, path.parent) if folder.is_dir() and folder != Path("."))
    top = next(tops, Path(DEFAULT))
    runs = sorted(find_runs(top, depth=_NEAR_DEPTH), key=lambda run: run.name)
    # Folders above them are alike, and say nothing.
    named = {folder.name: str(shown(folder)) for run in runs for folder in (run.parent, run)}
    if top != path and (alike := near(path.name, named)):
        return f"did you mean {' or '.join(named[name] for name in alike)}?"
    newest = [str(shown(run)) for run in runs[: -_NEAR - 1 : -1]]
    return f"the newest runs in {top}: {', '.join(newest)}" if newest else ""
