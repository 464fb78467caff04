"""A worker's black box: a small mapped file that says what it was doing, and survives its death.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf.scheduler.net import forks

_SIZE = 4096
_HEAD = struct.Struct("<QdI")
_EXIT_AT = 2048
STACK_SIGNAL = signal.SIGUSR2


class BlackBox:
    """The writing side, in the worker.

    Args:
        path: the file.
        record_crashes: whether the interpreter reports fatal signals to the crash file.
    """

    def __init__(self, path: Path, record_crashes: bool = True):
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
        if record_crashes:
            faulthandler.enable(self._crash, all_threads=True)
        faulthandler.register(STACK_SIGNAL, self._crash, all_threads=True)
        self._watch_exit()
        forks.in_child(self)
        self._write()

    def close_in_child(self, reason: str) -> None:
        """Leaves box and crash file to the parent; a forked child reports to its terminal."""
        faulthandler.unregister(STACK_SIGNAL)
        try:
            faulthandler.enable(sys.__stderr__, all_threads=True)
        except (AttributeError, OSError, RuntimeError, ValueError):
            # It has none.
            faulthandler.disable()

    def enter(self, activity: str) -> int:
        """Notes that something begins; activities may overlap, the latest is shown."""
        token = next(self._tokens)
        self._active[token] = (time.time(), activity)
        self._write()
        return token

    def leave(self, token: int) -> None:
        """Notes that an activity has ended."""
        self._active.pop(token, None)
        self._write()

    def rest(self, state: str) -> None:
        """Notes what the worker is doing when it does nothing else."""
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
            data = text.encode()[: _EXIT_AT - _HEAD.size]
            record = _HEAD.pack(os.getpid(), since, len(data)) + data
            self._map[: len(record)] = record

    def note_exit(self, **facts: Any) -> None:
        """Notes how the process is about to end; a forked child notes nothing."""
        if os.getpid() != self._pid:
            return
        data = json.dumps(facts).encode()[: _SIZE - _EXIT_AT - 4]
        self._map[_EXIT_AT : _EXIT_AT + 4 + len(data)] = struct.pack("<I", len(data)) + data

    def _watch_exit(self) -> None:
        leave = os._exit

        def noted_exit(code: int) -> None:
            self.note_exit(exit_code=code)
            leave(code)

        os._exit = noted_exit  # type: ignore[assignment]


@dataclass
class Remains:
    """What a dead worker left.

    Attributes:
        pid: its process id.
        activity: what it was doing.
        exit_code: exit code that it announced.
        crash: the interpreter's report of a fatal signal, empty if there is none.
        log_tail: its last log lines.
        oom_kills: the kernel's count of processes killed for memory on that node.
        process_state: state of the process if it is still there.
    """

    pid: int | None = None
    activity: str = ""
    exit_code: int | None = None
    crash: str = ""
    log_tail: list[str] = field(default_factory=list)
    oom_kills: int = 0
    process_state: str = ""

    @property
    def signal(self) -> str | None:
        """Name of the fatal signal, as far as the crash file tells."""
        for text, name in _FATAL:
            if text in self.crash:
                return name
        return None


_FATAL = (
    ("Segmentation fault", "SIGSEGV"),
    ("Aborted", "SIGABRT"),
    ("Bus error", "SIGBUS"),
    ("Floating point exception", "SIGFPE"),
    ("Floating-point exception", "SIGFPE"),
    ("Illegal instruction", "SIGILL"),
)


def examine(path: str, log_file: str, pid: int | None = None, lines: int = 20) -> Remains:
    """Reads what a worker left; runs on the worker's node, and needs nothing but files.

    Args:
        path: its black box.
        log_file: its log.
        pid: the process that is asked for, as far as that is known; a later one may have the box
            already.
        lines: most lines of the log to return.
    """
    remains = _read(Path(path))
    if pid is not None and remains.pid != pid:
        earlier = _read(_earlier(Path(path)))
        remains = earlier if earlier.pid == pid else remains
    if remains.pid:
        remains.process_state = process_state(remains.pid)
    remains.log_tail = tail(log_file, lines)
    return remains


def activity_of(path: str) -> str:
    """What a worker is doing now, with its age; empty if its box is not on this machine."""
    try:
        data = Path(path).read_bytes()
        _, since, size = _HEAD.unpack_from(data)
    except (OSError, struct.error):
        return ""
    return describe(data[_HEAD.size : _HEAD.size + size].decode("utf8", "replace"), since)


def _read(path: Path) -> Remains:
    remains = Remains(oom_kills=oom_kills())
    try:
        data = path.read_bytes()
        remains.pid, since, size = _HEAD.unpack_from(data)
        remains.activity = describe(
            data[_HEAD.size : _HEAD.size + size].decode("utf8", "replace"), since
        )
        (size,) = struct.unpack_from("<I", data, _EXIT_AT)
        if size:
            remains.exit_code = json.loads(data[_EXIT_AT + 4 : _EXIT_AT + 4 + size]).get(
                "exit_code"
            )
        remains.crash = crash_file(path).read_text(errors="replace")
    except (OSError, struct.error, ValueError):
        pass
    return remains


def _earlier(path: Path) -> Path:
    return path.with_name(f"{path.stem}_before{path.suffix}")


def _keep_earlier(path: Path) -> None:
    """Puts the box of a process that had this worker's name aside: somebody may still ask."""
    for old in (path, crash_file(path)):
        if old.exists():
            os.replace(old, _earlier(old))


def describe(activity: str, since: float) -> str:
    """An activity with its age."""
    return f"{activity} (for {max(0.0, time.time() - since):.1f} s)"


def crash_file(path: Path) -> Path:
    """Where the interpreter reports fatal signals and stacks."""
    return path.with_suffix(".stacks")


def tail(log_file: str, lines: int) -> list[str]:
    """The last lines of a file; empty if it cannot be read."""
    try:
        with open(log_file, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            return file.read().decode("utf8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory, here and in the machine."""
    total = 0
    for path, key in (("/sys/fs/cgroup/memory.events", "oom_kill"), ("/proc/vmstat", "oom_kill")):
        try:
            for line in Path(path).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    total += int(value)
        except (OSError, ValueError):
            continue
    return total


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal."""
    return _state_letter(pid) == "T"


def process_state(pid: int) -> str:
    """State of a process in words, empty if it is gone."""
    letter = _state_letter(pid)
    return {
        "": "",
        "R": "running",
        "S": "sleeping",
        "D": "waiting for a device",
        "T": "stopped by a signal",
    }.get(letter, "gone" if letter in "ZX" else letter)


def _state_letter(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
