"""Runs a command on a host as a shell runs one here: with the terminal, its signals, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from rlinf.testbed.bed import Host, environment

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals to this process that are for the command."""
_LEADER = Path(__file__).with_name("leader.py")


def run_in_foreground(
    host: Host,
    command: Sequence[str],
    env: Mapping[str, str | None] | None = None,
    cwd: str | os.PathLike[str] = "/",
) -> int:
    """Run a command on a host until it ends.

    The command leads a process group of its own. If standard input is a terminal, the group has it,
    so that Ctrl-C and Ctrl-Z are for the command alone; signals to this process are passed on.

    Args:
        host: where it runs.
        command: the program and its arguments.
        env: variables besides those of this process; None takes one away.
        cwd: folder to start in.

    Returns:
        Its exit code; 128 and the signal if one ended it.
    """
    process = subprocess.Popen(
        host.command([sys.executable, "-I", str(_LEADER), *command], cwd),
        env=environment(env),
        # Ctrl-C must not end what waits for the command.
        preexec_fn=os.setpgrp,
    )
    terminal = os.isatty(0)
    try:
        leader = _only_child(process)
        with _passing_on(leader):
            while (status := _next_state(process)) is None:
                # Stopped by Ctrl-Z: so is this one, until the shell that it belongs to goes on.
                if terminal:
                    _give_terminal(os.getpgrp())
                os.kill(os.getpid(), signal.SIGSTOP)
                if terminal:
                    _give_terminal(leader)
                _send(leader, signal.SIGCONT)
                process.send_signal(signal.SIGCONT)
    finally:
        if terminal:
            _give_terminal(os.getpgrp())
    return status if status >= 0 else 128 - status


def _only_child(process: subprocess.Popen[bytes]) -> int:
    """Return the process that the command is in, seen from here; 0 if it has ended already."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while True:
        try:
            found = children.read_text().split()
        except OSError:
            return 0
        if found:
            return int(found[0])
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return 0
        time.sleep(0.01)


def _next_state(process: subprocess.Popen[bytes]) -> int | None:
    """Wait until it ends or is stopped; return its exit code, or None if it is stopped."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return None
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


@contextlib.contextmanager
def _passing_on(leader: int) -> Iterator[None]:
    def pass_on(number: int, _: FrameType | None) -> None:
        _send(leader, number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(leader: int, number: int) -> None:
    """Send a signal to the command's group, or to the command before it has one."""
    if leader == 0:
        return
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(leader, number)
        except ProcessLookupError:
            os.kill(leader, number)


def _give_terminal(group: int) -> None:
    """Let a process group read from the terminal and be sent its signals."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # The group, or the terminal, may be gone by now.
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, group)
    signal.signal(signal.SIGTTOU, before)
