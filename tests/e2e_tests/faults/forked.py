"""What Ray starts in place of a worker: asks the nursery for a fork that becomes it, and ends."""

from __future__ import annotations

import os
import pickle
import socket
import sys

ADDRESS = "RLINF_TEST_NURSERY"
"""Variable that names the socket of the nursery."""


def start(address: str, argv: list[str], env: dict[str, str], files: list[int]) -> int:
    """Asks a nursery for a process; see `Nursery.start`.

    Args:
        address: socket of the nursery.
        argv: name of the module, and what it is given.
        env: all variables of the process.
        files: its standard input, output and error.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(address)
        socket.send_fds(asking, [pickle.dumps((argv, env, os.getcwd()))], files)
        return int(asking.recv(64))


if __name__ == "__main__":
    worker = ["ray._private.workers.default_worker", *sys.argv[1:]]
    start(os.environ[ADDRESS], worker, dict(os.environ), [0, 1, 2])
