"""What a dead worker left, and what that says: how it died and, if possible, why."""

from __future__ import annotations

import json
import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from rlinf.scheduler.errors import WorkerDied
from rlinf.scheduler.failure.process_state import oom_kills, process_state
from rlinf.scheduler.failure.record import EXIT_AT, HEAD, crash_file, describe, earlier_file

_LOOKS = 20
_LOOK_SECONDS = 0.01
OUT_OF_MEMORY = "the node ran out of memory and the kernel killed the process"


@dataclass
class PostMortem:
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


def read_post_mortem(
    path: str, log_file: str, pid: int | None = None, lines: int = 20
) -> PostMortem:
    """Read what a worker left; runs on the worker's node, and needs nothing but files.

    Args:
        path: its record.
        log_file: its log.
        pid: the process that is asked for, as far as that is known; a later one may have the record
            already.
        lines: most lines of the log to return.
    """
    found = _read_of(Path(path), pid)
    if found.pid:
        found.process_state = process_state(found.pid)
    found.log_tail = tail(log_file, lines)
    return found


def activity_of(path: str) -> str:
    """Return what a worker is doing now, with its age.

    Empty if its record is not on this machine.
    """
    try:
        data = Path(path).read_bytes()
        _, since, size = HEAD.unpack_from(data)
    except (OSError, struct.error):
        return ""
    return describe(data[HEAD.size : HEAD.size + size].decode("utf8", "replace"), since)


def _read_of(path: Path, pid: int | None) -> PostMortem:
    """Read what a process left, also while the next of its name puts that aside."""
    for _ in range(_LOOKS):
        found = _read(path)
        if pid is None:
            return found
        moved = not crash_file(path).exists() or _read(path).pid != pid
        if found.pid == pid and not moved:
            return found
        earlier = _read(earlier_file(path))
        if earlier.pid == pid:
            return earlier
        if found.pid != pid:
            return found
        time.sleep(_LOOK_SECONDS)
    # It ended before it had a crash file.
    return found


def _read(path: Path) -> PostMortem:
    found = PostMortem(oom_kills=oom_kills())
    try:
        data = path.read_bytes()
        found.pid, since, size = HEAD.unpack_from(data)
        found.activity = describe(
            data[HEAD.size : HEAD.size + size].decode("utf8", "replace"), since
        )
        (size,) = struct.unpack_from("<I", data, EXIT_AT)
        if size:
            found.exit_code = json.loads(data[EXIT_AT + 4 : EXIT_AT + 4 + size]).get("exit_code")
        found.crash = crash_file(path).read_text(errors="replace")
    except (OSError, struct.error, ValueError):
        pass
    return found


def tail(log_file: str, lines: int) -> list[str]:
    """Return the last lines of a file; empty if it cannot be read."""
    try:
        with open(log_file, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            return file.read().decode("utf8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def diagnose(
    name: str,
    found: PostMortem,
    *,
    node_rank: int | None,
    node_ip: str,
    message: str = "",
    oom_kills_before: int = 0,
) -> WorkerDied:
    """Build the error for a dead worker.

    Args:
        name: its address.
        found: what it left.
        node_rank: node that it ran on.
        node_ip: address of that node.
        message: what Ray says of the death.
        oom_kills_before: the node's count of processes killed for memory when the run began.
    """
    signal, exit_code = found.signal, found.exit_code
    if found.pid is None:
        return WorkerDied(
            name,
            node_rank=node_rank,
            node_ip=node_ip,
            activity="starting, before it could note anything",
            cause=f"the process could not be started; Ray says: {_gist(message)}",
        )
    if signal is None and exit_code is None:
        # A process that can still run a handler leaves a note; one that could not was killed.
        signal = "SIGKILL"
    return WorkerDied(
        name,
        node_rank=node_rank,
        node_ip=node_ip,
        pid=found.pid,
        signal=signal,
        exit_code=None if signal else exit_code,
        activity=found.activity.partition(" (for ")[0],
        cause=_cause(signal, exit_code, found, message, oom_kills_before),
        log_tail=found.log_tail,
    )


def _gist(message: str, lines: int = 6) -> str:
    """Return the end of Ray's message, where the reason stands."""
    return "\n".join([line for line in message.splitlines() if line.strip()][-lines:])


def _cause(
    signal: str | None, exit_code: int | None, found: PostMortem, message: str, before: int
) -> str:
    if signal == "SIGKILL":
        if found.oom_kills > before:
            return OUT_OF_MEMORY
        if "memory monitor" in message.lower() or "outofmemory" in message.lower().replace(" ", ""):
            return "Ray's memory monitor killed it because the node was short of memory"
        return "killed from outside, by a person, a batch system or the kernel"
    if signal is not None:
        return f"a crash in native code ({signal}); the stacks are in the worker's .stacks file"
    return f"something in the process called exit with code {exit_code}"


def what_to_change(error: WorkerDied) -> str:
    """Advice for a death."""
    if error.pid is None:
        return "check that this package and the worker's modules can be imported on that node"
    if not error.explained:
        return (
            "look whether that node is up and its network works; runner.max_restarts lets a run "
            "go on from its last checkpoint"
        )
    if error.cause == OUT_OF_MEMORY or "memory" in error.cause:
        return (
            "use fewer processes per node, fewer environments (env.train.total_num_envs) or "
            "smaller batches, or a node with more memory"
        )
    if error.signal == "SIGKILL":
        return (
            "find out who sent SIGKILL (batch system, container limit, dmesg); a group launched "
            "with restart={'on_failure': n} survives it"
        )
    if error.signal:
        return (
            "look at the stacks for the library that crashed; run the worker alone to reproduce it"
        )
    return (
        "raise an exception instead of leaving the process, so that the reason reaches the driver"
    )
