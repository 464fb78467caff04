"""A Python process that is asked questions over a pipe and has so long to answer."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlinf.utils.processes.frames import HEADER, MAX_FRAME
from rlinf.utils.processes.lifetime import kill_family

_ROOT = str(Path(__file__).resolve().parents[3])
KEPT_OUTPUT = 4096
"""Last bytes of what a child prints, kept for messages."""
BURY_SECONDS = 10.0
"""How long to wait for the end of a process that was killed."""


class ChildFailed(RuntimeError):
    """A child gave no answer; it is of no use any more."""


class ChildTimeout(ChildFailed):
    """It did not answer in time."""


class ChildDied(ChildFailed):
    """It ended without an answer."""


class ChildTooLoud(ChildFailed):
    """It printed more than it may."""


class ChildProcess:
    """A Python process in a session of its own, with a pipe for questions and one for answers.

    It dies with the thread that made it, if it calls `die_with_parent`. What it prints is read and
    dropped, but for the end.

    Args:
        module: module with a function `main(read_fd, write_fd, parent_pid)`, which reads questions
            as frames and answers each with one frame.
        flags: options of the interpreter.
        env: environment; that of this process by default.
        max_output: most bytes that it may print while it has a question.
    """

    def __init__(
        self,
        module: str,
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        max_output: int = 1 << 20,
    ):
        self._max_output = max_output
        self._tail = b""
        child_reads, self._to = os.pipe()
        self._from, child_writes = os.pipe()
        self._output, child_prints = os.pipe()
        # A package that pip has linked to its sources is found by a hook that -S leaves out.
        places = [*sys.path, *([] if _ROOT in sys.path else [_ROOT])]
        program = (
            f"import sys; sys.path[:] = {places!r}\n"
            f"from {module} import main\n"
            f"main({child_reads}, {child_writes}, {os.getpid()})"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=child_prints,
                stderr=child_prints,
                pass_fds=(child_reads, child_writes),
                start_new_session=True,
                env=env,
            )
        except BaseException:
            for fd in (self._to, self._from, self._output):
                os.close(fd)
            raise
        finally:
            for fd in (child_reads, child_writes, child_prints):
                os.close(fd)
        for fd in (self._to, self._from, self._output):
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The end of what it has printed."""
        return self._tail.decode(errors="replace").strip()

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Send a question and wait for the answer.

        Args:
            question: any bytes.
            seconds: deadline.

        Raises:
            ChildTimeout: no answer in time.
            ChildDied: it ended, or answered with garbage.
            ChildTooLoud: it printed more than `max_output` bytes meanwhile.
        """
        self._drain(limit=None)
        deadline = time.monotonic() + seconds
        outgoing = memoryview(HEADER.pack(len(question)) + question)
        answer = bytearray()
        printed = 0
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        poll.register(self._output, select.POLLIN)
        poll.register(self._to, select.POLLOUT)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ChildTimeout(f"no answer within {seconds:g} s")
            for fd, event in poll.poll(left * 1000):
                if fd == self._to:
                    outgoing = self._send(outgoing)
                    if not outgoing:
                        poll.unregister(self._to)
                elif fd == self._output:
                    count = self._drain(self._max_output + 1 - printed)
                    printed += count
                    if printed > self._max_output:
                        raise ChildTooLoud(f"printed more than {self._max_output} bytes")
                    if not count and event & select.POLLHUP:
                        poll.unregister(self._output)
                elif self._receive(answer):
                    return bytes(answer[HEADER.size :])

    @property
    def waits(self) -> bool:
        """Whether it can be asked: it lives, and has said nothing since its last answer."""
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        return not poll.poll(0)

    def close(self, seconds: float) -> None:
        """Let it end by itself, which closes its questions, and kill it if it does not.

        Args:
            seconds: how long it may take; a kill takes `BURY_SECONDS` more at the most.
        """
        if self._to >= 0:
            os.close(self._to)
            self._to = -1
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def strike(self) -> None:
        """End it and all it has started; whoever asks it something is told, and closes it."""
        # Not one that has been buried: its number may be another's by now.
        if self._process.poll() is None:
            kill_family(self.pid)

    def kill(self) -> None:
        """End it and all it has started, and closes its pipes; may be called twice."""
        self.strike()
        try:
            self._process.wait(BURY_SECONDS)
        except subprocess.TimeoutExpired:
            # Deep in the kernel, such as in a file system that does not answer: nobody can end it.
            pass
        for fd in (self._to, self._from, self._output):
            if fd >= 0:
                os.close(fd)
        self._to = self._from = self._output = -1

    def _send(self, rest: memoryview) -> memoryview:
        try:
            return rest[os.write(self._to, rest[: 1 << 16]) :]
        except BlockingIOError:
            return rest
        except BrokenPipeError:
            raise self._died() from None

    def _receive(self, answer: bytearray) -> bool:
        """Read a part of the answer, and nothing that follows it; whether that was all of it."""
        part = os.read(self._from, min(1 << 16, _length_of(answer) - len(answer)))
        if not part:
            raise self._died()
        answer += part
        return len(answer) >= HEADER.size and len(answer) == _length_of(answer)

    def _drain(self, limit: int | None) -> int:
        """Read what it printed, up to a limit; return how many bytes."""
        count = 0
        while limit is None or count < limit:
            try:
                part = os.read(self._output, 1 << 16)
            except BlockingIOError:
                break
            if not part:
                break
            count += len(part)
            self._tail = (self._tail + part)[-KEPT_OUTPUT:]
            if limit is None and count > self._max_output:
                break
        return count

    def _died(self) -> ChildDied:
        # The pipe closes a moment before the process is gone; a closed pipe alone is death, too.
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return ChildDied("closed its pipe")
        self._drain(self._max_output)
        if code < 0:
            names = {member.value: member.name for member in signal.Signals}
            return ChildDied(f"killed by {names.get(-code, f'signal {-code}')}")
        return ChildDied(f"ended with exit code {code}")


def _length_of(answer: bytearray) -> int:
    """Bytes of a message of which the beginning is known; of its header if that is not."""
    if len(answer) < HEADER.size:
        return HEADER.size
    length = HEADER.unpack(answer[: HEADER.size])[0]
    if length > MAX_FRAME:
        raise ChildDied(f"answered with garbage: a message of {length} bytes")
    return HEADER.size + length
