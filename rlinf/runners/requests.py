"""What others ask of a run that is under way: to stop, or to save; by files in its folder.

The run looks for them after each step. So they reach it from every host that sees the folder. A
request names the run that it is for, by who holds the lock of the folder: one that was left there
before a run began is not for that run.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf.utils.runs.lock import holder_of
from rlinf.utils.runs.summary import RUNNING, status_of

FOLDER = "requests"
STOP, CHECKPOINT, _ANSWER = "stop", "checkpoint", "answer"

Holder = dict[str, Any]
"""Who runs: pid, host, since; see `rlinf.utils.runs.lock`."""


class NotRunning(RuntimeError):
    """Nobody is there who could do what is asked for."""


# -- those who ask ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """Something that was asked of a run.

    Attributes:
        folder: of the run.
        what: STOP or CHECKPOINT.
        holder: the run that it is for.
        id: tells it from others.
    """

    folder: Path
    what: str
    holder: Holder
    id: str

    def answer(self) -> dict[str, Any] | None:
        """Return what came of it, once; None while that is not known."""
        path = self.folder / FOLDER / f"{_ANSWER}-{self.id}.json"
        found = _read(path)
        if found is not None:
            path.unlink()
        return found


def running(folder: Path) -> Holder:
    """Return who runs in a folder.

    Raises:
        NotRunning: nobody does; says what became of the run.
    """
    holder = holder_of(folder)
    if holder is None or has_ended(folder, holder):
        status = status_of(folder)
        ended = f"its status is {status}" if status else "it is not the folder of a run"
        raise NotRunning(f"{folder} is not running: {ended}")
    return holder


def has_ended(folder: Path, holder: Holder) -> bool:
    """Return whether a run has ended, on this host also all that it had started."""
    now = holder_of(folder)
    if now is None or now != holder:
        return True
    # The lock of another host may not be seen here; what it says of itself is.
    return holder["host"] != socket.gethostname() and status_of(folder) != RUNNING


def ask(folder: Path, what: str, holder: Holder) -> Request:
    """Ask something of a run.

    Args:
        folder: of the run.
        what: STOP or CHECKPOINT.
        holder: of `running`.
    """
    request = Request(folder, what, holder, secrets.token_hex(4))
    (folder / FOLDER).mkdir(exist_ok=True)
    _write(folder / FOLDER / f"{what}-{request.id}.json", {"for": holder, "at": time.time()})
    return request


def is_asked(folder: Path, what: str, holder: Holder) -> bool:
    """Return whether a run has been asked for something that it has not done."""
    return any(_requests(folder, what, holder))


# -- the run ---------------------------------------------------------------------------------------


class RunRequests:
    """What is asked of the run of this process.

    Args:
        folder: of the run, which this process has locked.

    Attributes:
        stop: whether it is to stop.
        checkpoint: whether it is to save.
    """

    def __init__(self, folder: Path):
        self.stop = False
        self._folder = folder
        self._holder = holder_of(folder)
        self._wanted: list[Request] = []
        self._begun: list[Request] = []
        self._step = 0

    @property
    def checkpoint(self) -> bool:
        """Whether it is to save."""
        return bool(self._wanted)

    def look(self) -> None:
        """Look for requests; those for others are dropped."""
        if self._holder is None:
            return
        for path, request in _files(self._folder):
            if request is None or request.holder != self._holder:
                path.unlink(missing_ok=True)
            elif request.what == STOP:
                self.stop = True
            else:
                path.unlink(missing_ok=True)
                self._wanted.append(request)

    def begin_save(self, step: int) -> None:
        """Note that what is asked for is being saved."""
        self._begun, self._wanted, self._step = self._begun + self._wanted, [], step

    def end_save(self, path: Path | None) -> None:
        """Tell those who have asked for a checkpoint that it is there, or that it cannot be.

        Args:
            path: the checkpoint; None if it could not be written.
        """
        found = {"step": self._step, "path": None if path is None else str(path)}
        for request in self._begun:
            _write(self._folder / FOLDER / f"{_ANSWER}-{request.id}.json", found)
        self._begun = []

    @property
    def saving(self) -> int | None:
        """Step of the checkpoint that somebody waits for; None if nobody does."""
        return self._step if self._begun else None

    def close(self) -> None:
        """Leave nothing of this run behind but answers."""
        for path, _ in _files(self._folder):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self._folder / FOLDER).rmdir()


# -- files -----------------------------------------------------------------------------------------


def _files(folder: Path) -> list[tuple[Path, Request | None]]:
    """Return the files of requests, and what they say; None for what is damaged."""
    try:
        names = sorted(os.listdir(folder / FOLDER))
    except FileNotFoundError:
        return []
    out: list[tuple[Path, Request | None]] = []
    for name in names:
        path = folder / FOLDER / name
        what, _, id = path.stem.partition("-")
        if what in (STOP, CHECKPOINT) and path.suffix == ".json":
            found = _read(path)
            out.append((path, found and Request(folder, what, found["for"], id)))
    return out


def _requests(folder: Path, what: str, holder: Holder) -> Iterator[Request]:
    for _, request in _files(folder):
        if request is not None and (request.what, request.holder) == (what, holder):
            yield request


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError):
        return None


def _write(path: Path, facts: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(facts))
    os.replace(part, path)
