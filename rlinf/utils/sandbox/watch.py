"""Watches one process of a sandbox: reads what it writes, up to a limit, and ends it in time."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any

from rlinf.utils.processes.frames import HEADER
from rlinf.utils.processes.lifetime import kill_descendants
from rlinf.utils.sandbox import inside

_STDERR_BYTES = 4096


class Watch:
    """One run of a program.

    Args:
        child: its process id.
        fds: where its output, its errors, its replies, and the words of its set-up come from.
        requests: where requests go to.
        seconds: how long it has.
        limit: most bytes on each of them.
        each_message: whether it has that long for each message, and not for all of them.
    """

    def __init__(
        self,
        child: int,
        fds: list[int],
        requests: int,
        seconds: float,
        limit: int,
        each_message: bool = False,
    ):
        self._child = child
        self._seconds = seconds if each_message else None
        self._begin = time.monotonic()
        self._deadline = self._begin + seconds
        self._pidfd = os.pidfd_open(child)
        self._stdout, self._stderr, self._replies, self._setup = fds
        self._read = {fd: bytearray() for fd in fds}
        self._requests, self._outgoing = requests, b""
        self._limit = limit
        self._reason: str | None = None
        self._ended = False
        self._poll = select.poll()
        for fd in (self._pidfd, *fds):
            self._poll.register(fd, select.POLLIN)
        for fd in (requests, *fds):
            os.set_blocking(fd, False)

    def until_message(self, request: bytes | None = None) -> bytes | None:
        """Send a request and wait for the next message.

        Returns:
            The message; None when the program has ended, or must be.
        """
        if self._seconds is not None:
            self._deadline = time.monotonic() + self._seconds
        if request is not None:
            self._outgoing = HEADER.pack(len(request)) + request
            self._write()
        while not self._over():
            message = self._message()
            if message is not None:
                return message
            self._wait()
        # It may have said it with its last breath.
        return self._message() if self._reason is None else None

    def until_end(self) -> None:
        """Tell the program that there are no more requests, and wait for its end."""
        self._close_requests()
        if self._seconds is not None:
            self._deadline = time.monotonic() + self._seconds
        while not self._over():
            self._wait()

    def result(self, alone: bool) -> dict[str, Any]:
        """Kill the program and what it has started.

        Args:
            alone: whether this process is process 1 of its namespace, with the program alone.

        Returns:
            `status`, `stdout`, `stderr`, `seconds`, and `setup`, which the program cannot write.
        """
        code = self._end(alone)
        self._close_requests()
        os.close(self._pidfd)
        for fd in self._read:
            os.close(fd)
        words = bytes(self._read[self._setup])
        return {
            "status": self._reason or _status(code),
            "stdout": self._read[self._stdout].decode(errors="replace"),
            "stderr": self._read[self._stderr][-_STDERR_BYTES:].decode(errors="replace"),
            "seconds": time.monotonic() - self._begin,
            "setup": json.loads(words) if words else None,
        }

    def _over(self) -> bool:
        if not self._ended and time.monotonic() >= self._deadline:
            self._reason = self._reason or "timeout"
        return self._ended or self._reason is not None

    def _wait(self) -> None:
        """Wait for one event, and take what it brings."""
        left = max(0.0, self._deadline - time.monotonic())
        for fd, _ in self._poll.poll(left * 1000):
            if fd == self._requests:
                self._write()
            elif fd == self._pidfd:
                for other in self._read:
                    self._take(other)
                self._ended = True
                return
            else:
                self._take(fd)

    def _write(self) -> None:
        """Send what there is room for, and wait for more room."""
        try:
            self._outgoing = self._outgoing[os.write(self._requests, self._outgoing) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            # It wants to hear no more, or has ended.
            self._outgoing = b""
        if self._outgoing:
            self._poll.register(self._requests, select.POLLOUT)
        elif self._requests >= 0:
            self._forget(self._requests)

    def _close_requests(self) -> None:
        if self._requests >= 0:
            self._forget(self._requests)
            os.close(self._requests)
            self._requests = -1

    def _forget(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except KeyError:
            pass

    def _take(self, fd: int) -> None:
        """Read what is there, up to the limit."""
        content = self._read[fd]
        while len(content) <= self._limit:
            try:
                part = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            if not part:
                self._forget(fd)
                return
            content += part
        self._reason = self._reason or "output"

    def _message(self) -> bytes | None:
        content = self._read[self._replies]
        if len(content) < HEADER.size:
            return None
        end = HEADER.size + HEADER.unpack(content[: HEADER.size])[0]
        if len(content) < end:
            return None
        message = bytes(content[HEADER.size : end])
        del content[:end]
        return message

    def _end(self, alone: bool) -> int:
        """Kill what is left, the program first; return its exit code, negative for a signal."""
        try:
            os.kill(self._child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        _, status = os.waitpid(self._child, 0)
        if alone:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
        else:
            kill_descendants(os.getpid())
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            return os.waitstatus_to_exitcode(status)


def _status(code: int) -> str:
    if code == 0:
        return "ok"
    if code == -signal.SIGXCPU:
        return "timeout"
    return "memory" if code == inside.EXIT_MEMORY else "error"
