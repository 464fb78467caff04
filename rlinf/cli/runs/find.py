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
    return os.path.isfile(folder / SUMMARY) or os.path.isfile(folder / LOCK)


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
    return folder.name.startswith(".") or folder.name == CHECKPOINTS or os.path.islink(folder)


def absolute(path: Path) -> Path:
    """Return a path from the root; a link to a run, such as `latest`, becomes that run's folder."""
    path = Path(os.path.abspath(path))
    if not os.path.islink(path) or not has_run(path):
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
    is_folder = os.path.isdir(text)
    what = f"{text} is not the folder of a run" if is_folder else f"there is no run at {text}"
    return f"{what}; {_near_runs(Path(text)) or '`rlinf runs FOLDER` lists the runs in a folder'}"


def _near_runs(path: Path) -> str:
    """Name runs or experiments that a user may have meant; empty if there are none nearby."""
    top = _place_of_runs(path)
    runs = [run for run in find_runs(top, depth=_NEAR_DEPTH) if _has_marks_or_checkpoints(run)]
    runs.sort(key=lambda run: (run.stat().st_mtime, run.name))
    # Folders above them are alike, and say nothing; nor does the current one, which is ".".
    folders = [folder for run in runs for folder in (run.parent, run) if folder != Path.cwd()]
    named = {folder.name: str(shown(folder)) for folder in folders}
    if top != path and (alike := near(path.name, named)):
        return f"did you mean {' or '.join(named[name] for name in alike)}?"
    newest = [str(shown(run)) for run in runs[: -_NEAR - 1 : -1]]
    return f"the newest runs in {top}: {', '.join(newest)}" if newest else ""


def _place_of_runs(path: Path) -> Path:
    """Return the folder to look in for what a user may have meant."""
    logs, here = Path(DEFAULT), Path(".")
    # A bare name is more likely one in the folder of logs, unless that is the current one.
    places = [logs, here] if path.parent == here else [path.parent, logs]
    if path != here:
        places.insert(0, path)
    return next((folder for folder in places if os.path.isdir(folder)), logs)


def _has_marks_or_checkpoints(folder: Path) -> bool:
    """Return whether a folder has more of a run than a `config.yaml`, which many a folder has."""
    return _has_marks(folder) or os.path.isdir(folder / CHECKPOINTS)
