"""The keeper of a sandbox: starts the program anew for each run, watches it, and ends it.

It is a process between the one that asks and the program: process 1 of namespaces of its own where
that is allowed, otherwise the one that adopts orphans, so that nothing gets away.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from rlinf.utils.processes.frames import read_frame, write_frame
from rlinf.utils.processes.lifetime import adopt_orphans, die_with_parent, kill_descendants
from rlinf.utils.sandbox import namespaces, program

_STDERR_BYTES = 4096


def main(read_fd: int, write_fd: int, parent: int) -> None:
    """Serve one program until the questions end."""
    die_with_parent(parent)
    adopt_orphans()
    hello = json.loads(read_frame(read_fd) or b"{}")
    _only_installed_packages()
    Launcher(hello, read_fd, write_fd).serve()
    os._exit(0)


class Launcher:
    """Runs one program any number of times.

    Args:
        settings: `code`, `layers` and limits, as `Sandbox` sends them.
        read_fd: where questions come from.
        write_fd: where answers go.
    """

    def __init__(self, settings: dict[str, Any], read_fd: int, write_fd: int):
        self._code = settings.pop("code")
        self._settings = settings
        self._read_fd, self._write_fd = read_fd, write_fd
        self._problem: str | None = "not asked for"
        settings["own_users"] = False
        if "namespaces" in settings["layers"]:
            self._problem, settings["own_users"] = namespaces.enter()
        settings["drop_user"] = (
            "user" in settings["layers"]
            and os.geteuid() == 0
            and not settings["own_users"]
            and _readable_to_all()
        )

    def serve(self) -> None:
        """Say what is enforced, then answers each question with the result of a run."""
        self._tell(self._enforced())
        while (frame := read_frame(self._read_fd)) is not None:
            self._tell(self.run(json.loads(frame)))

    def _tell(self, value: dict[str, Any]) -> None:
        write_frame(self._write_fd, json.dumps(value).encode())

    def _enforced(self) -> dict[str, Any]:
        found = self.run({"probe": True})
        if "setup" in found:
            return {"failed": found["setup"]}
        by, problems = found["by"], found["problems"]
        if self._problem is None:
            kept = ["network", "signals"] + (["processes"] if self._settings["own_users"] else [])
            for name in kept:
                by.setdefault(name, []).append("namespaces")
        else:
            problems["namespaces"] = self._problem
        return {"by": by, "problems": problems}

    def run(self, question: dict[str, Any]) -> dict[str, Any]:
        """Run the program once.

        Args:
            question: `stdin`, `call`, `arguments`, `check`, `seconds`, as `Sandbox.run` sends them.

        Returns:
            `status`, `stdout`, `stderr`, `seconds` and, for calls and checks, `value`.
        """
        begin = time.monotonic()
        stdin = os.memfd_create("stdin")
        with open(stdin, "wb", closefd=False) as file:
            file.write(question.get("stdin", "").encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        pipes = [os.pipe() for _ in range(3)]
        child = os.fork()
        if not child:
            self._become(stdin, [write for _, write in pipes], question)
        os.close(stdin)
        for _, write in pipes:
            os.close(write)
        watch = _Watch(child, [read for read, _ in pipes], self._settings["output_bytes"])
        seconds = min(question.get("seconds", 1e9), self._settings["seconds"])
        reason = watch.wait(begin + seconds)
        code = self._end(child)
        stdout, stderr, value = watch.finish()
        result = {
            "status": reason or _status(code),
            "stdout": stdout.decode(errors="replace"),
            "stderr": stderr[-_STDERR_BYTES:].decode(errors="replace"),
            "seconds": time.monotonic() - begin,
        }
        if question.get("probe") or code == program.EXIT_SETUP:
            return result | _told(value)
        if result["status"] == "ok":
            # The program can write there, too: nothing but a value is taken.
            result["value"] = _told(value).get("value")
        return result

    def _become(self, stdin: int, outputs: list[int], question: dict[str, Any]) -> None:
        """Turn this process, a fork, into the program."""
        try:
            os.setsid()
            # First out of the way of each other, then to their places.
            kept = [os.dup(fd) for fd in (stdin, *outputs)]
            high = max(kept) + 1
            kept = [os.dup2(fd, high + place) for place, fd in enumerate(kept)]
            for place, fd in enumerate(kept):
                os.dup2(fd, place)
            os.closerange(program.VALUE_FD + 1, high + len(kept) + 1)
            os.chdir("/")
            program.run(self._code, question, self._settings)
        finally:
            os._exit(program.EXIT_SETUP)

    def _end(self, child: int) -> int:
        """Kill what is left, the program first; return its exit code, negative for a signal."""
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        _, status = os.waitpid(child, 0)
        if self._problem is None:
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


class _Watch:
    """Reads what a program writes, up to a limit, until it ends or its time is over."""

    def __init__(self, child: int, fds: list[int], limit: int):
        self._pidfd = os.pidfd_open(child)
        self._read = {fd: bytearray() for fd in fds}
        self._open = set(fds)
        self._limit = limit
        for fd in fds:
            os.set_blocking(fd, False)

    def wait(self, deadline: float) -> str | None:
        """Return why the program must be ended; None when it has ended by itself."""
        poll = select.poll()
        for fd in (self._pidfd, *self._open):
            poll.register(fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            for fd, _ in poll.poll(left * 1000):
                if fd == self._pidfd:
                    return "output" if any(map(self._take, list(self._open))) else None
                if self._take(fd):
                    return "output"
                if fd not in self._open:
                    poll.unregister(fd)

    def finish(self) -> list[bytes]:
        """Close everything; return standard output, standard error, and the value."""
        os.close(self._pidfd)
        for fd in self._read:
            os.close(fd)
        return [bytes(content) for content in self._read.values()]

    def _take(self, fd: int) -> bool:
        """Read what is there; whether that is too much."""
        content = self._read[fd]
        while len(content) <= self._limit:
            try:
                part = os.read(fd, 1 << 16)
            except BlockingIOError:
                return False
            if not part:
                self._open.discard(fd)
                return False
            content += part
        return True


def _status(code: int) -> str:
    if code == 0:
        return "ok"
    if code == -signal.SIGXCPU:
        return "timeout"
    return "memory" if code == program.EXIT_MEMORY else "error"


def _told(value: bytes) -> dict[str, Any]:
    try:
        told = json.loads(value)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _only_installed_packages() -> None:
    """Let programs import the standard library and installed packages, and nothing else."""
    paths = sysconfig.get_paths()
    allowed = [paths["stdlib"], paths["platstdlib"], str(Path(os.__file__).parent)]
    sys.path[:] = [
        path
        for path in sys.path
        if any(path.startswith(root) for root in allowed)
        or path.endswith((".zip", "site-packages", "dist-packages"))
    ]
    sys.path_importer_cache.clear()


def _readable_to_all() -> bool:
    """Return whether a stranger can import the standard library."""
    place = Path(os.__file__).resolve()
    return all(folder.stat().st_mode & 0o001 for folder in place.parents) and bool(
        place.stat().st_mode & 0o004
    )
