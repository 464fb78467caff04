"""`Sandbox`: one program that nobody has read, run any number of times under limits."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any

from rlinf.utils.processes.child import ChildFailed, ChildProcess
from rlinf.utils.sandbox import values
from rlinf.utils.sandbox.confine import GUARANTEES, LAYERS, Enforced
from rlinf.utils.sandbox.protocol import END, MESSAGE, START
from rlinf.utils.sandbox.warm_parent import WarmParent

START_SECONDS = 30.0
GRACE_SECONDS = 5.0
CLOSE_SECONDS = 1.0
"""Time that starting, ending a program, and closing may take beyond the program's own."""


class SandboxUnavailable(RuntimeError):
    """This machine cannot confine a program as it must be."""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: wall time of one run; of an interpreter, of each piece of code.
        memory_mb: address space (MiB).
        output_bytes: bytes that one run may print, on each of its streams.
        cpu_seconds: processor time of one run, in whole seconds; None is its wall time.
    """

    seconds: float = 5.0
    memory_mb: int = 512
    output_bytes: int = 1 << 20
    cpu_seconds: int | None = None


@dataclass(frozen=True)
class RunResult:
    """What became of one run.

    Attributes:
        status: "ok" (exit code 0), "error" (an exception, another exit code, or a signal),
            "timeout", "memory" (more than it may have), or "output" (printed too much).
        stdout: what it printed.
        stderr: the end of what it printed there.
        seconds: how long it took.
        value: what the called function returned, a plain value; True after a check that passed.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    value: Any = None


class Sandbox:
    """A Python program in a sandbox.

    The program can compute, start threads, and use the interpreter and installed packages. It
    cannot reach the network, start a process, signal or change another process, change a file, read
    other files, or act as root. Each run is a fresh process, and all it has left behind is killed.

    Args:
        code: the program; None for a sandbox that runs checks of other programs, or interprets.
        limits: what each run may use.
        layers: what confines it; for tests.
        require: guarantees that must hold, see `rlinf.utils.sandbox.confine.GUARANTEES`.
        folder: a folder that the program may read, where it starts; none by default.
        parent: forks what keeps the sandbox, which is quicker than to start it; None starts it, and
            it ends with the thread that made it.

    Attributes:
        enforced: what holds, and by which layers.

    Raises:
        SandboxUnavailable: one of them cannot be held on this machine.
    """

    def __init__(
        self,
        code: str | None,
        limits: Limits | None = None,
        *,
        layers: Collection[str] = LAYERS,
        require: Collection[str] = GUARANTEES,
        folder: str | None = None,
        parent: WarmParent | None = None,
    ):
        self._limits = limits or Limits()
        self._keeper: ChildProcess | None = None
        if sys.platform != "linux":
            raise SandboxUnavailable(f"programs are run on Linux only, and this is {sys.platform}")
        self._keeper = _start_keeper() if parent is None else parent.fork()
        try:
            hello = {
                "code": code or "",
                "checks": code is None and parent is None,
                "interprets": parent is not None,
                "layers": list(layers),
                "folder": folder,
                "start_seconds": START_SECONDS,
                **asdict(self._limits),
            }
            told = json.loads(self._ask(json.dumps(hello).encode(), START_SECONDS + GRACE_SECONDS))
            if "failed" in told:
                raise SandboxUnavailable(f"the sandbox cannot be set up: {told['failed']}")
            self.enforced = Enforced(told["by"], told["problems"])
            missing = [name for name in self.enforced.missing if name in require]
            if missing:
                raise SandboxUnavailable(
                    f"on this machine nothing keeps a program from: {', '.join(missing)}. "
                    f"{self.enforced}"
                )
        except BaseException:
            self.close()
            raise

    def run(
        self,
        stdin: str = "",
        *,
        call: str | None = None,
        arguments: Sequence[Any] = (),
        seconds: float | None = None,
    ) -> RunResult:
        """Run the program from its beginning.

        Args:
            stdin: what it can read.
            call: function of the program to call afterwards; a method, if there is a class
                `Solution` that has it.
            arguments: of that call, plain data.
            seconds: less time than the limits give.

        Raises:
            SandboxUnavailable: the sandbox itself failed.
            BadValue: the arguments are not plain data.
        """
        if call is None:
            return self._session({"stdin": stdin}, seconds).end()
        request = {"do": "function", "name": call, "arguments": list(arguments)}
        frame = values.encode(request)
        session = self._session({"stdin": stdin, "serve": True, "objects": False}, seconds)
        session.read(values.decode)
        session.send(frame)
        reply = session.read(values.decode)
        result = session.end()
        if result.status != "ok" or not isinstance(reply, dict) or "value" not in reply:
            return result
        return replace(result, value=reply["value"])

    def serve(self, seconds: float | None = None) -> Session:
        """Run the program from its beginning, and keep it to be asked for its objects."""
        session = self._session({"serve": True, "objects": True}, seconds)
        session.read(values.decode)
        return session

    def run_check(self, check: str, seconds: float | None = None) -> Session:
        """Run a check, which asks for objects of a program; of a sandbox without a program."""
        return self._session({"check": check}, seconds)

    def interpret(self, characters: int) -> Session:
        """Start an interpreter; each message is a piece of code, and has its own time.

        Args:
            characters: most that is kept of what a piece of code prints.
        """
        question = {"interpret": {"characters": characters}, "seconds": self._limits.seconds}
        session = Session(self._ask, question, self._limits.seconds, each_message=True)
        session.read(values.decode)
        return session

    def close(self) -> None:
        """End the sandbox and whatever is left in it."""
        if self._keeper is not None:
            # A keeper that ends by itself leaves no dead process for others to bury.
            self._keeper.close(CLOSE_SECONDS)

    def _session(self, question: dict[str, Any], seconds: float | None) -> Session:
        allowed = self._limits.seconds if seconds is None else min(seconds, self._limits.seconds)
        return Session(self._ask, {**question, "seconds": allowed}, allowed)

    def _ask(self, question: bytes, seconds: float) -> bytes:
        assert self._keeper is not None
        try:
            return self._keeper.ask(question, seconds)
        except ChildFailed as error:
            words = self._keeper.last_words
            raise SandboxUnavailable(f"the sandbox failed: {error}. {words}".strip()) from error

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _start_keeper() -> ChildProcess:
    return ChildProcess(
        "rlinf.utils.sandbox.launcher",
        flags=("-I", "-S"),
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LANG": "C.UTF-8"},
    )


class Session:
    """One run of a program that sends messages; a sandbox has one at a time.

    Args:
        ask: sends a question to the launcher, with a deadline, and returns the answer.
        question: what to start.
        seconds: how long the run has.
        each_message: whether it has that long for each message, and not for all of them.
    """

    def __init__(
        self,
        ask: Callable[[bytes, float], bytes],
        question: dict[str, Any],
        seconds: float,
        each_message: bool = False,
    ):
        self._ask = ask
        self._seconds = seconds if each_message else None
        self._deadline = time.monotonic() + seconds
        self._result: RunResult | None = None
        self._message = b""
        self._problem = ""
        self._exchange(START + json.dumps(question).encode())

    @property
    def ended(self) -> bool:
        """Whether the program has ended, or was ended."""
        return self._result is not None

    def read(self, decode: Callable[[bytes], Any]) -> Any:
        """Return the message that has come; None if there is none, or if it is not a value.

        Args:
            decode: reads it, and raises `BadValue`.
        """
        if self._result is not None or self._problem:
            return None
        try:
            return decode(self._message)
        except values.BadValue as error:
            self._problem = f"what the program sent {error}"
            return None

    @property
    def message(self) -> bytes:
        """The message that has come, as it is."""
        return self._message

    def send(self, message: bytes) -> None:
        """Send a message and wait for the next one; does nothing once the program has ended."""
        if self._result is None and not self._problem:
            self._exchange(MESSAGE + message)

    def end(self) -> RunResult:
        """Let the program end, in its time, and return what became of it."""
        if self._result is None:
            self._exchange(END)
        assert self._result is not None
        if self._problem:
            said = f"{self._result.stderr}\n{self._problem}".strip()
            return replace(self._result, status="error", stderr=said)
        return self._result

    def _exchange(self, question: bytes) -> None:
        if self._seconds is not None:
            self._deadline = time.monotonic() + self._seconds
        left = max(0.0, self._deadline - time.monotonic())
        answer = self._ask(question, left + GRACE_SECONDS)
        if answer[:1] == MESSAGE:
            self._message = answer[1:]
            return
        told = json.loads(answer[1:])
        setup = told.pop("setup") or {}
        if "failed" in setup:
            raise SandboxUnavailable(f"the sandbox cannot be set up: {setup['failed']}")
        self._result = RunResult(**told)
