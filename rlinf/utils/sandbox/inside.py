"""The beginning of every process in a sandbox: takes its rights from it, then does its work."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rlinf.utils.processes.frames import read_frame, write_frame
from rlinf.utils.processes.lifetime import libc
from rlinf.utils.sandbox.confine import Enforced, confine, drop_capabilities, limit_resources

NOBODY = 65534
MOST_THREADS = 4096
"""Threads of all programs of this machine together, where root runs them as nobody."""

REQUESTS, REPLIES, SETUP = 3, 4, 5
"""Descriptors after the standard streams. Only what happens before the work can write to SETUP."""

EXIT_SETUP, EXIT_MEMORY = 120, 121
"""Exit codes: the sandbox could not be set up; the program asked for more memory than it may."""


def become(work: Callable[[], int] | None, settings: Mapping[str, Any]) -> None:
    """Confine this process, say what is enforced, do the work, and end the process.

    Args:
        work: Returns the exit code; None only says what is enforced.
        settings: What the launcher was told, and what it has found out.
    """
    try:
        enforced = _confine(settings)
        _tell_setup({"by": enforced.by, "problems": enforced.problems})
    except BaseException as error:
        _tell_setup({"failed": f"{type(error).__name__}: {error}"})
        os._exit(EXIT_SETUP)
    os.close(SETUP)
    exit_code = 1
    try:
        exit_code = work() if work is not None else 0
    except MemoryError:
        exit_code = EXIT_MEMORY
    finally:
        os._exit(exit_code)


def receive() -> bytes | None:
    """Wait for what comes from outside; None at the end."""
    return read_frame(REQUESTS)


def send(message: bytes) -> None:
    """Send something outside."""
    write_frame(REPLIES, message)


def finish() -> None:
    """Do what the interpreter does at its end: wait for threads, and write what is in buffers."""
    threading = sys.modules.get("threading")
    if threading is not None:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    atexit = sys.modules.get("atexit")
    if atexit is not None:
        atexit._run_exitfuncs()
    flush()


def flush() -> None:
    """Write what is in the buffers of the standard streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass


def _confine(settings: Mapping[str, Any]) -> Enforced:
    layers = settings["layers"]
    megabyte = 1 << 20
    limits = {
        "AS": settings["memory_mb"] * megabyte,
        "CPU": int(settings["cpu_seconds"] or settings["seconds"]) + 2,
        "FSIZE": 0,
        "CORE": 0,
        "NOFILE": 64,
    }
    # Threads are counted per user: with one's own ids, only those of the program; as nobody, those
    # of all programs together; as the user who asks, those of others, too, so that none is right.
    if settings["own_users"]:
        limits["NPROC"] = 64
    elif settings["drop_user"]:
        limits["NPROC"] = MOST_THREADS
    enforced = Enforced()
    if settings["drop_user"]:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if os.getuid() != 0:
        enforced.add("user", ("privileges",))
    else:
        enforced.problems["user"] = settings["user_problem"]
    # Another user is another process to the kernel: this is forgotten on the way.
    set_death_signal = 1
    libc().prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)
    drop_capabilities()
    limit_resources(limits)
    own = confine(layers, settings["readable"])
    for guarantee, names in own.by.items():
        for name in names:
            enforced.add(name, (guarantee,))
    enforced.problems.update(own.problems)
    return enforced


def _tell_setup(words: Mapping[str, Any]) -> None:
    os.write(SETUP, json.dumps(words).encode())
