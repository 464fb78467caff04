"""What Ray starts in place of a worker: asks the fork server for a fork that becomes it."""

from __future__ import annotations

import os
import pickle
import runpy
import socket
import sys

ADDRESS = "RLINF_TEST_NURSERY"
"""Variable that names the fork_server."""
WORKER = "ray._private.workers.default_worker"
REFUSED = 0
_PATIENCE = 100.0
"""Seconds in which a fork_server answers; it may be importing something large."""
_EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Beginnings of variables that have done their work when a program begins."""


def place_of(address: str) -> str:
    """The socket of a fork_server; it is in no file system."""
    return f"\0{address}"


def kind(env: dict[str, str]) -> tuple[object, ...]:
    """What a process is from its first moment; a fork of another kind cannot become it."""
    return sys.executable, {name: env[name] for name in env if name.startswith(_EARLY)}


def start(
    address: str,
    argv: list[str],
    env: dict[str, str],
    files: list[int],
    wanted: tuple[object, ...] | None = None,
) -> int:
    """Asks a fork_server for a process; see `ForkServer.start`.

    Args:
        address: name of the fork_server.
        argv: name of the module, and what it is given.
        env: all variables of the process.
        files: its standard input, output and error.
        wanted: kind that it must be of; the first that is wanted is the fork_server's.

    Returns:
        The process id, or `REFUSED` if the fork_server is of another kind.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(_PATIENCE)
        asking.connect(place_of(address))
        socket.send_fds(asking, [pickle.dumps((argv, env, os.getcwd(), wanted))], files)
        answer = asking.recv(64)
    if not answer:
        raise ConnectionResetError("the fork_server has ended")
    return int(answer)


if __name__ == "__main__":
    argv, env = [WORKER, *sys.argv[1:]], dict(os.environ)
    try:
        pid = start(os.environ[ADDRESS], argv, env, [0, 1, 2], kind(env))
    except OSError as error:
        print(f"there is no fork_server any more: {error}", file=sys.stderr)
        pid = REFUSED
    if pid == REFUSED:
        runpy.run_module(WORKER, run_name="__main__", alter_sys=True)
