"""A process that has imported what sandboxes need, and forks a launcher for each of them.

To start an interpreter takes a tenth of a second, and a fork takes milliseconds. The warm parent
knows nothing that a program must not know: what a sandbox runs comes after the fork.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from rlinf.utils.processes.child import ChildFailed, ChildProcess
from rlinf.utils.processes.lifetime import die_with_parent
from rlinf.utils.processes.open_files import allow_open_files

_ROOT = str(Path(__file__).resolve().parents[3])
_START_SECONDS = 30.0
_FORK, _DONE = b"f", b"d"


class WarmParent:
    """Forks launchers; may be used by any thread, and lives until it is closed.

    A child dies with the thread that has made it, so a thread of its own keeps the process.

    Raises:
        ChildFailed: it cannot be started.
    """

    def __init__(self) -> None:
        # A session has a handful open.
        allow_open_files(1 << 16)
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._closed, started = threading.Event(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        keeper = threading.Thread(
            target=self._keep, args=(theirs, started), daemon=True, name="warm parent"
        )
        keeper.start()
        started.wait(_START_SECONDS)
        self._socket.settimeout(_START_SECONDS)
        try:
            ready = self._socket.recv(1)
        except OSError:
            ready = b""
        if ready != _DONE:
            self.close()
            raise ChildFailed("the parent of sandboxes did not start")

    def _keep(self, theirs: socket.socket, started: threading.Event) -> None:
        """Start the process, and be there as long as it is."""
        program = (
            f"import sys; sys.path[:] = {[*sys.path, _ROOT]!r}\n"
            "from rlinf.utils.sandbox.warm_parent import main\n"
            f"main({theirs.fileno()}, {os.getpid()})"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LANG": "C.UTF-8"},
            )
        finally:
            theirs.close()
            started.set()
        self._closed.wait()
        self._process.kill()
        self._process.wait()

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        if self._closed.is_set():
            return False
        return self._process is not None and self._process.poll() is None

    def fork(self) -> ForkedChild:
        """Fork a launcher.

        Raises:
            ChildFailed: the parent has died, or does not answer; or too many files are open.
        """
        theirs: list[int] = []
        ours: list[int] = []
        try:
            for end in (0, 1, 1):
                pair = _pipe()
                theirs.append(pair[end])
                ours.append(pair[1 - end])
            told, fds = self._ask_for_child(theirs)
            if not fds:
                raise ChildFailed("the parent of sandboxes could not fork")
            return ForkedChild(int(told), fds[0], ours)
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def _ask_for_child(self, theirs: list[int]) -> tuple[bytes, list[int]]:
        """Return the number of a new child and what it is watched by."""
        try:
            with self._lock:
                socket.send_fds(self._socket, [_FORK], theirs)
                told, fds, _, _ = socket.recv_fds(self._socket, 32, 1)
            return told, fds
        except OSError as error:
            # An answer that comes later would be taken for that of the next question.
            self.close()
            raise ChildFailed(f"the parent of sandboxes does not answer: {error}") from error

    def close(self) -> None:
        """End it, and with it all that it has forked."""
        self._closed.set()
        self._socket.close()


def _pipe() -> tuple[int, int]:
    try:
        return os.pipe()
    except OSError as error:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise ChildFailed(
            f"a session needs further open files, of which this process may have {most}: {error}. "
            "Raise the limit of its user (ulimit -Hn), or play fewer episodes at a time"
        ) from error


class ForkedChild(ChildProcess):
    """A process that a warm parent has forked for us; see `ChildProcess`.

    Args:
        pid: its process id.
        pidfd: the same as a descriptor, which no other process can come to have.
        pipes: where questions go, where answers come from, and where what it prints does.
    """

    def __init__(self, pid: int, pidfd: int, pipes: list[int]) -> None:
        self._max_output, self._tail = 1 << 20, b""
        self._to, self._from, self._output = pipes
        self._process = _Handle(pid, pidfd)
        for fd in pipes:
            os.set_blocking(fd, False)

    def kill(self) -> None:
        """See `ChildProcess.kill`."""
        super().kill()
        self._process.close()


class _Handle:
    """What `ChildProcess` needs to know of a process that is not its own child."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid, self._pidfd = pid, pidfd

    def poll(self) -> int | None:
        """Return 0 if it has ended; its exit code is told to its parent only."""
        return 0 if self._pidfd < 0 or self._ended_within(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("launcher", timeout or 0.0)
            self._ended_within(left)
        return 0

    def _ended_within(self, seconds: float | None) -> bool:
        # Not `select.select`, which refuses descriptors from 1024 on: there may be many sessions.
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def close(self) -> None:
        """Close the descriptor; it counts as ended then."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def main(socket_fd: int, parent: int) -> None:
    """Fork launchers until the other side closes."""
    die_with_parent(parent)
    # Before any fork, and before folders of this package leave `sys.path`.
    import ast  # noqa: F401
    import collections  # noqa: F401
    import datetime  # noqa: F401
    import fractions  # noqa: F401
    import functools  # noqa: F401
    import itertools  # noqa: F401
    import math  # noqa: F401
    import random  # noqa: F401
    import re  # noqa: F401
    import statistics  # noqa: F401
    import string  # noqa: F401
    import traceback  # noqa: F401

    from rlinf.utils.sandbox import interpreter, launcher, readable  # noqa: F401

    readable.keep_installed_packages()
    # Those that have ended leave nothing behind.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=socket_fd) as asked:
        asked.sendall(_DONE)
        own = os.getpid()
        while True:
            word, fds, _, _ = socket.recv_fds(asked, 1, 3)
            if not word:
                break
            try:
                child = os.fork()
            except OSError:
                # There are too many processes: this one and its children go on.
                child = -1
            if not child:
                _become(fds, socket_fd, own)
            for fd in fds:
                os.close(fd)
            if child < 0:
                asked.sendall(b"-1")
                continue
            try:
                pidfd = os.pidfd_open(child)
            except OSError:
                asked.sendall(str(child).encode())
                continue
            socket.send_fds(asked, [str(child).encode()], [pidfd])
            os.close(pidfd)
    os._exit(0)


def _become(fds: list[int], socket_fd: int, parent: int) -> None:
    """Turn this process, a fork, into a launcher."""
    from rlinf.utils.sandbox import launcher

    try:
        os.close(socket_fd)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        reads, writes, prints = fds
        os.dup2(prints, 1)
        os.dup2(prints, 2)
        os.close(prints)
        launcher.main(reads, writes, parent)
    finally:
        os._exit(1)
