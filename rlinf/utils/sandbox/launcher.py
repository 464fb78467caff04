"""The keeper of a sandbox: starts the program anew for each run, watches it, and ends it.

It is a process between the one that asks and the program: process 1 of namespaces of its own where
that is allowed, otherwise the one that adopts orphans, so that nothing gets away. It knows nothing
that a program must not know, because programs are forks of it, and it interprets nothing that a
program says: messages are passed on as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from rlinf.utils.processes.frames import read_frame, write_frame
from rlinf.utils.processes.lifetime import adopt_orphans, die_with_parent
from rlinf.utils.sandbox import inside, namespaces, program, readable
from rlinf.utils.sandbox.confine import keep_descriptors
from rlinf.utils.sandbox.protocol import MESSAGE, RESULT, START
from rlinf.utils.sandbox.watch import Watch


def main(read_fd: int, write_fd: int, parent: int) -> None:
    """Serve one program until the questions end."""
    die_with_parent(parent)
    adopt_orphans()
    hello = json.loads(read_frame(read_fd) or b"{}")
    readable.keep_installed_packages()
    Launcher(hello, read_fd, write_fd).serve()
    os._exit(0)


class Launcher:
    """Runs one program any number of times, or any check.

    Args:
        settings: `code`, `layers` and limits, as `Sandbox` sends them.
        read_fd: where questions come from.
        write_fd: where answers go.
    """

    def __init__(self, settings: dict[str, Any], read_fd: int, write_fd: int):
        self._code = settings.pop("code")
        self._settings = settings
        self._read_fd, self._write_fd = read_fd, write_fd
        self._watch: Watch | None = None
        if settings["checks"]:
            # Parsers take their time to load: only where they are used, and before any fork.
            from rlinf.utils.sandbox import check_process

            self._check_process = check_process
        if settings["interprets"]:
            from rlinf.utils.sandbox import interpreter

            self._interpreter = interpreter
        self._own = namespaces.Entered("not asked for")
        if "namespaces" in settings["layers"]:
            self._own = namespaces.enter()
        settings["own_users"] = self._own.users
        folder = settings["folder"]
        settings["readable"] = [*readable.readable_paths(), *([folder] if folder else [])]
        settings["user_problem"] = self._prepare_user()
        settings["drop_user"] = not settings["user_problem"] and os.geteuid() == 0

    def serve(self) -> None:
        """Say what is enforced, then answer each question."""
        self._tell(json.dumps(self._enforced()).encode())
        while (frame := read_frame(self._read_fd)) is not None:
            self._tell(self._answer(frame))

    def _tell(self, frame: bytes) -> None:
        write_frame(self._write_fd, frame)

    def _answer(self, frame: bytes) -> bytes:
        """Start a run, hand a message to it, or end it; return what is told."""
        kind, body = frame[:1], frame[1:]
        if kind == START:
            self._watch = self._start(json.loads(body))
            message = self._watch.until_message()
        elif kind == MESSAGE:
            assert self._watch is not None
            message = self._watch.until_message(body)
        else:
            assert self._watch is not None
            self._watch.until_end()
            message = None
        if message is not None:
            return MESSAGE + message
        watch, self._watch = self._watch, None
        return RESULT + json.dumps(watch.result(self._own.problem is None)).encode()

    def _enforced(self) -> dict[str, Any]:
        watch = self._start({"probe": True, "seconds": self._settings["start_seconds"]})
        watch.until_end()
        result = watch.result(self._own.problem is None)
        found = result.get("setup") or {}
        if "by" not in found:
            why = found.get("failed") or f"the probe ended with {result['status']}"
            return {"failed": f"{why} {result['stderr']}".strip()}
        by, problems = found["by"], found["problems"]
        if self._own.problem is None:
            by.setdefault("signals", []).append("namespaces")
        else:
            problems["namespaces"] = self._own.problem
        return {"by": by, "problems": problems}

    def _start(self, question: dict[str, Any]) -> Watch:
        """Start the program once.

        Args:
            question: `stdin`, `seconds`, `serve`, `objects`, `check` and `interpret`, as `Sandbox`
                sends them.
        """
        stdin = os.memfd_create("stdin")
        with open(stdin, "wb", closefd=False) as file:
            file.write(question.get("stdin", "").encode(errors="replace"))
        os.lseek(stdin, 0, os.SEEK_SET)
        # From the child: standard output, standard error, replies, and how it was set up.
        pipes = [os.pipe() for _ in range(4)]
        requests, to_child = os.pipe()
        child = os.fork()
        if not child:
            output, error, replies, setup = (write for _, write in pipes)
            self._become([stdin, output, error, requests, replies, setup], question)
        for fd in (stdin, requests, *(write for _, write in pipes)):
            os.close(fd)
        seconds = question["seconds"]
        return Watch(
            child,
            [read for read, _ in pipes],
            to_child,
            seconds,
            self._settings["output_bytes"],
            each_message="interpret" in question,
        )

    def _become(self, descriptors: list[int], question: dict[str, Any]) -> None:
        """Turn this process, a fork, into the program."""
        try:
            os.setsid()
            # First out of the way of each other, then to their places.
            high = max(descriptors) + len(descriptors)
            for place, fd in enumerate(descriptors):
                os.dup2(fd, high + place)
            for place in range(len(descriptors)):
                os.dup2(high + place, place)
            keep_descriptors(len(descriptors))
            os.chdir(self._settings["folder"] or "/")
            inside.become(self._work(question), self._settings)
        finally:
            os._exit(inside.EXIT_SETUP)

    def _work(self, question: dict[str, Any]) -> Callable[[], int] | None:
        if question.get("probe"):
            return None
        if question.get("check") is not None:
            return lambda: self._check_process.work(question["check"])
        if question.get("interpret") is not None:
            return lambda: self._interpreter.work(question["interpret"])
        return lambda: program.work(self._code, question)

    def _prepare_user(self) -> str:
        """Make it possible for programs of root to be another user; return why it is not."""
        if "user" not in self._settings["layers"]:
            return "not asked for"
        if os.geteuid() != 0:
            return ""
        needed = readable.python_paths()
        if namespaces.readable_to_all(needed):
            return ""
        if not self._own.mounts:
            return "other users cannot read this Python: use one that they can, or do not be root"
        try:
            namespaces.open_way(needed)
        except OSError as error:
            return f"other users cannot read this Python: {error}"
        return "" if namespaces.readable_to_all(needed) else "other users cannot read this Python"
