"""Jobs that behave, and jobs that do not, for processes of a pool."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rlinf.utils.processes.frames import write_frame


def make(prefix: str):
    """Makes the function that does a job by its name."""

    def do(name: str, *args: Any) -> Any:
        return globals()[name](*args) if name != "echo" else [prefix, *args]

    return do


def make_nothing() -> None:
    raise LookupError("there is nothing to make")


def never_ready():
    time.sleep(60)


def hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def leave() -> None:
    os._exit(7)


def segfault() -> None:
    ctypes.string_at(0)


def flood(count: int) -> str:
    sys.stdout.write("x" * count)
    return "done"


def fail() -> None:
    raise KeyError("missing")


def leave_interpreter() -> None:
    sys.exit("no")


def late() -> None:
    raise TimeoutError("gave up")


def hog() -> None:
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


def not_plain() -> object:
    return object()


def say(answer: bytes) -> None:
    """Answers in place of the process, and goes."""
    write_frame(_answers_go_to(), answer)
    os._exit(0)


def say_raw(garbage: bytes) -> None:
    os.write(_answers_go_to(), garbage)
    os._exit(0)


def say_twice(answer: bytes) -> str:
    """Answers in place of the process, which answers as well."""
    write_frame(_answers_go_to(), answer)
    return "second"


def _answers_go_to() -> int:
    frame = sys._getframe()
    while "write_fd" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["write_fd"]


def pid() -> int:
    return os.getpid()


def daemon_then_hang(path: str) -> None:
    """Leaves a process with another session and no parent, says its pid, and hangs."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(path).write_text(str(os.getpid()))
            time.sleep(60)
        os._exit(0)
    hang()


def forbidden(path: str) -> dict[str, str]:
    """Tries what a confined process must not do; says what came of each."""
    tried = {
        "network": lambda: socket.socket(),
        "process": lambda: os.fork() or os._exit(0),
        "signal": lambda: os.kill(os.getppid(), 0),
        "file": lambda: Path(path).write_text("x"),
        "remove": lambda: Path(path).unlink(),
    }
    outcome = {}
    for name, action in tried.items():
        try:
            action()
            outcome[name] = "possible"
        except OSError as error:
            outcome[name] = type(error).__name__
    return outcome
