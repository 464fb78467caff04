"""Where runs are: `<log_path>/<experiment_name>/<time>-<id>`, and `latest` beside them."""

from __future__ import annotations

import contextlib
import os
import secrets
import string
import time
from pathlib import Path

LATEST = "latest"
"""Link to the run of an experiment that was begun last."""
CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
SAMPLES = "samples.jsonl"
"""What a language model wrote in a run, one response or episode a line."""
_DIGITS = string.digits + string.ascii_lowercase


def new_run_folder(experiment: Path) -> Path:
    """Make a folder that no other run has, below the folder of an experiment, for this user alone.

    Its configuration and logs may hold what other users of the machine should not read. Nor may
    they rename it, so what is made above it is not for all to write to.
    """
    for above in (*reversed(experiment.parents), experiment):
        above.mkdir(mode=0o775, exist_ok=True)
    while True:
        folder = experiment / _name(time.time())
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder


def _name(now: float) -> str:
    """Return `<time>-<id>`; the id is the part of the second, so that names sort by time."""
    rest = int(now % 1 * len(_DIGITS) ** 4)
    digits = ""
    for _ in range(4):
        rest, digit = divmod(rest, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{digits}"


def new_evaluation_folder(run: Path, name: str) -> Path:
    """Make a folder for an evaluation inside the folder of a run: `name`, `name-2`, ..."""
    number = 1
    while True:
        folder = run / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        return folder


def point_latest_to(run: Path) -> None:
    """Let the link `latest` beside a run point to it; a folder of that name is left alone."""
    link, part = run.parent / LATEST, run.parent / f".{LATEST}.{secrets.token_hex(4)}"
    if link.exists() and not link.is_symlink():
        return
    # Some file systems have no links: then there is none.
    with contextlib.suppress(OSError):
        part.symlink_to(run.name)
        os.replace(part, link)


def shown(folder: Path) -> Path:
    """Return a folder as a user would type it here: from the current folder, if it is in it."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run; one that may not be entered is none."""
    # The methods of paths raise an error there.
    return os.path.isfile(folder / CONFIG) or os.path.isdir(folder / CHECKPOINTS)


def experiment_runs(experiment: Path) -> list[Path]:
    """Return the folders of an experiment's runs, the oldest first."""
    try:
        inside = [path for path in experiment.iterdir() if not os.path.islink(path)]
    except OSError:
        return []
    return sorted((path for path in inside if is_run(path)), key=lambda path: path.name)


def find_run(path: str | Path) -> Path:
    """Return the folder of a run: the path itself, or the newest run of an experiment's folder."""
    path = Path(path)
    if is_run(path) or not os.path.isdir(path):
        return path
    latest = path / LATEST
    if is_run(latest):
        return latest.resolve()
    runs = experiment_runs(path)
    return runs[-1] if runs else path
