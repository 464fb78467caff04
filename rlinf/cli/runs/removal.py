"""Deletes runs, or only their checkpoints, after looking at what that would take away."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from rlinf.cli.runs.find import absolute, find_runs, has_run, not_a_run
from rlinf.utils.runs import LATEST, RunInUse, RunLock, experiment_runs, point_latest_to, status_of
from rlinf.utils.runs.folders import CHECKPOINTS, CONFIG, shown
from rlinf.utils.runs.lock import FILE as LOCK
from rlinf.utils.runs.lock import holder_of
from rlinf.utils.runs.summary import EVALUATED, RUNNING
from rlinf.utils.runs.summary import FILE as SUMMARY

_MARKS = (LOCK, SUMMARY, CONFIG)
"""What a run is known by. It goes last, so that a deletion that is cut short can be repeated."""
_CONTENT = (*_MARKS, "metrics.jsonl", CHECKPOINTS, "workers")
_EVALUATION = "eval_"


class Refused(ValueError):
    """Something that is not deleted, and why."""


@dataclass(frozen=True)
class Removal:
    """What would be deleted.

    Attributes:
        run: folder of the run.
        sizes: bytes by name of what lies in it and would go, the largest first.
        elsewhere: folder of its checkpoints outside of it, which would go as well; None if they
            lie in it.
        only_checkpoints: whether the rest stays.
    """

    run: Path
    sizes: dict[str, int]
    elsewhere: Path | None = None
    only_checkpoints: bool = False

    @property
    def size(self) -> int:
        """Bytes altogether."""
        return sum(self.sizes.values())


def plan_removal(text: str, only_checkpoints: bool = False) -> Removal:
    """Look at a run that is to be deleted.

    Args:
        text: its folder, as the user has typed it. The folder of an experiment is not taken for
            its newest run here.
        only_checkpoints: leave all but the checkpoints.

    Raises:
        Refused: it is in use, or not just a run.
    """
    folder = absolute(Path(text))
    _check_is_run(text, folder)
    for run in find_runs(folder):
        _check_not_in_use(run)
    if not only_checkpoints:
        _check_nothing_else(folder)
    gone = folder / CHECKPOINTS if only_checkpoints else folder
    if Path.cwd().is_relative_to(gone.resolve()):
        raise Refused(f"{gone} is, or holds, the current folder; go elsewhere with cd first")
    entries = [folder / CHECKPOINTS] if only_checkpoints else list(folder.iterdir())
    elsewhere = _own_target(folder)
    sizes = {path.name: _size(path) for path in entries if os.path.lexists(path)}
    if elsewhere is not None:
        sizes[CHECKPOINTS] = _size(elsewhere)
    if not only_checkpoints and not sizes:
        raise Refused(not_a_run(text))
    largest_first = dict(sorted(sizes.items(), key=lambda item: -item[1]))
    return Removal(folder, largest_first, elsewhere, only_checkpoints)


def remove(removal: Removal) -> None:
    """Delete what was planned; nobody can begin to use the run meanwhile.

    Raises:
        Refused: a run has begun there since.
        OSError: something cannot be deleted; what is left is still a run.
    """
    run = removal.run
    try:
        lock = RunLock(run)
    except RunInUse:
        raise Refused(_in_use(run)) from None
    try:
        names = sorted(removal.sizes, key=lambda name: (name in _MARKS, name == LOCK))
        for name in names:
            _delete(run / name, removal.elsewhere if name == CHECKPOINTS else None)
        if not removal.only_checkpoints:
            # One that had no lock has got it just now.
            (run / LOCK).unlink(missing_ok=True)
            run.rmdir()
    finally:
        lock.release()


def repair_latest(experiment: Path) -> Path | None:
    """Let a link `latest` whose run is gone point to the newest run left; without one it goes, too.

    Args:
        experiment: folder of the experiment.

    Returns:
        The link, if it was changed.
    """
    link = experiment / LATEST
    if not link.is_symlink() or link.exists():
        return None
    trained = [run for run in experiment_runs(experiment) if status_of(run) != EVALUATED]
    if trained:
        point_latest_to(trained[-1])
    else:
        link.unlink()
    return link


def _check_is_run(text: str, folder: Path) -> None:
    if not folder.is_dir():
        raise Refused(not_a_run(text))
    if not has_run(folder):
        inside = len(find_runs(folder))
        if not inside:
            raise Refused(not_a_run(text))
        raise Refused(
            f"{text} is not a run but holds {inside}; name those to delete, as `rlinf runs {text}` "
            "lists them"
        )
    # Many a folder has a config.yaml; what only runs have must be there as well.
    names = {path.name for path in folder.iterdir()}
    is_mine = names & {LOCK, SUMMARY}
    if not is_mine or (len(names & {*_CONTENT}) < 2 and len(names) > 1):
        raise Refused(
            f"{text} does not look like a run: of {', '.join(_CONTENT)} it has "
            f"{', '.join(sorted(names & {*_CONTENT}))}; delete it by hand if it is one"
        )


def _check_not_in_use(run: Path) -> None:
    holder = holder_of(run)
    if holder is None:
        return
    # A run that has said how it ended holds nothing, whatever host it was on.
    if holder.get("host") in (socket.gethostname(), None) or status_of(run) in (None, RUNNING):
        raise Refused(_in_use(run))


def _in_use(run: Path) -> str:
    holder = holder_of(run) or {}
    host = holder.get("host", "?")
    said = f"{shown(run)} is running: process {holder.get('pid', '?')} on {host}; stop it first"
    if host != socket.gethostname():
        said += (
            f". Locks of {host} cannot be seen from here: if that run is over, delete it there, or "
            f"delete {shown(run / LOCK)}"
        )
    return said


def _check_nothing_else(folder: Path) -> None:
    others = [
        run
        for run in find_runs(folder)
        if run != folder and not run.relative_to(folder).parts[0].startswith(_EVALUATION)
    ]
    if others:
        raise Refused(
            f"{shown(folder)} has other runs in it, such as {shown(others[0])}; delete them first, "
            "or only its checkpoints with --checkpoints"
        )
    if (folder / ".git").exists():
        raise Refused(
            f"{shown(folder)} is a git repository as well as a run; delete what is of the run by "
            "hand, or its checkpoints with --checkpoints"
        )


def _own_target(folder: Path) -> Path | None:
    """Return where the link `checkpoints` of a run leads to, if that is the run's own folder.

    With `actor.checkpoint_save_path` a run saves to `<path>/<experiment>/<run>/checkpoints`.
    """
    link = folder / CHECKPOINTS
    if not link.is_symlink() or not link.is_dir():
        return None
    target = link.resolve()
    is_own = target.name == CHECKPOINTS and target.parent.name == folder.resolve().name
    return target if is_own else None


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder, each once; follow no links."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    seen: dict[tuple[int, int], int] = {}
    for root, _, files in os.walk(path):
        for name in files:
            facts = os.lstat(os.path.join(root, name))
            seen[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(seen.values())


def _delete(path: Path, target: Path | None = None) -> None:
    """Delete a file or folder; of a link also the target, if one is given."""
    if target is not None:
        shutil.rmtree(target)
        if not any(target.parent.iterdir()):
            target.parent.rmdir()
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)
