"""What a worker records for its post-mortem: a small mapped file that survives its death.

It says what the worker is doing and, if it could say so, with which exit code it ended.

The kernel keeps a mapped page after SIGKILL, so writing costs a memory copy and needs no flush.
Beside it lies the crash file: the interpreter's own report of a fatal signal, written without the
GIL.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rlinf.scheduler.net import forks

_SIZE = 4096
HEAD = struct.Struct("<QdI")
EXIT_AT = 2048
STACK_SIGNAL = signal.SIGUSR2


class PostMortemRecord:
    """The writing side, in the worker.

    Args:
        path: the file.
        record_crashes: whether the interpreter reports fatal signals to the crash file.
        of_process: whether the worker is the whole process, whose end is its own.
    """

    def __init__(self, path: Path, record_crashes: bool = True, of_process: bool = True):
        self.path = path
        self._pid = os.getpid()
        path.parent.mkdir(parents=True, exist_ok=True)
        _keep_earlier(path)
        with open(path, "w+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._crash = open(crash_file(path), "w")  # noqa: SIM115 - open for the process's life
        self._base = (time.time(), "starting")
        self._active: dict[int, tuple[float, str]] = {}
        self._tokens = itertools.count()
        self._lock = threading.Lock()
        if of_process:
            self._watch_process(record_crashes)
        self._write()

    def _watch_process(self, record_crashes: bool) -> None:
        if record_crashes:
            faulthandler.enable(self._crash, all_threads=True)
        faulthandler.register(STACK_SIGNAL, self._crash, all_threads=True)
        self._watch_exit()
        forks.in_child(self)

    def close_in_child(self, reason: str) -> None:
        """Leave record and crash file to the parent; a forked child reports to its terminal."""
        faulthandler.unregister(STACK_SIGNAL)
        try:
            faulthandler.enable(sys.__stderr__, all_threads=True)
        except (AttributeError, OSError, RuntimeError, ValueError):
            # It has none.
            faulthandler.disable()

    def enter(self, activity: str) -> int:
        """Note that something begins; activities may overlap, the latest is shown."""
        token = next(self._tokens)
        self._active[token] = (time.time(), activity)
        self._write()
        return token

    def leave(self, token: int) -> None:
        """Note that an activity has ended."""
        self._active.pop(token, None)
        self._write()

    def rest(self, state: str) -> None:
        """Note what the worker is doing when it does nothing else."""
        self._base = (time.time(), state)
        self._write()

    def _latest(self) -> tuple[float, str]:
        try:
            return next(reversed(self._active.values()))
        except (StopIteration, RuntimeError):
            return self._base

    @property
    def activity(self) -> str:
        """What is going on now."""
        since, text = self._latest()
        return describe(text, since)

    def _write(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            since, text = self._latest()
            data = text.encode()[: EXIT_AT - HEAD.size]
            record = HEAD.pack(self._pid, since, len(data)) + data
            self._map[: len(record)] = record

    def note_exit(self, **facts: Any) -> None:
        """Note how the process is about to end; a forked child notes nothing."""
        if os.getpid() != self._pid:
            return
        data = json.dumps(facts).encode()[: _SIZE - EXIT_AT - 4]
        self._map[EXIT_AT : EXIT_AT + 4 + len(data)] = struct.pack("<I", len(data)) + data

    def _watch_exit(self) -> None:
        leave = os._exit

        def noted_exit(code: int) -> None:
            self.note_exit(exit_code=code)
            leave(code)

        os._exit = noted_exit  # type: ignore[assignment]


def earlier_file(path: Path) -> Path:
    """Return where the file of the process is that had this worker's name before."""
    return path.with_name(f"{path.stem}_before{path.suffix}")


def _keep_earlier(path: Path) -> None:
    """Put the record of a process that had this worker's name aside: somebody may still ask.

    The crash file goes first: whoever finds the record here and no crash file looks again.
    """
    for old in (crash_file(path), path):
        if old.exists():
            os.replace(old, earlier_file(old))


def describe(activity: str, since: float) -> str:
    """Return an activity with its age."""
    return f"{activity} (for {max(0.0, time.time() - since):.1f} s)"


def crash_file(path: Path) -> Path:
    """Return where the interpreter reports fatal signals and stacks."""
    return path.with_suffix(".stacks")
