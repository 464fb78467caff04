"""`Sandbox`: one program that nobody has read, run any number of times under limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any

from rlinf.utils.processes.child import ChildFailed, ChildProcess
from rlinf.utils.sandbox.confine import GUARANTEES, LAYERS, Enforced

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
        seconds: wall time of one run.
        memory_mb: address space (MiB).
        output_bytes: bytes that one run may print, on each of its streams.
    """

    seconds: float = 5.0
    memory_mb: int = 512
    output_bytes: int = 1 << 20


@dataclass(frozen=True)
class RunResult:
    """What became of one run.

    Attributes:
        status: "ok" (exit code 0), "error" (an exception, another exit code, or a signal),
            "timeout", "memory" (more than it may have), or "output" (printed too much).
        stdout: what it printed.
        stderr: the end of what it printed there.
        seconds: how long it took.
        value: what the called function returned, as JSON has it; True after a check that passed.
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    value: Any = None


RESULT_FIELDS = tuple(field.name for field in fields(RunResult))


class Sandbox:
    """A Python program in a sandbox.

    The program can compute, start threads, read files that the user may read, and use installed
    packages. It cannot reach the network, start a process, signal or change another process, or
    change a file. Each run is a fresh process, and all it has left behind is killed.

    Args:
        code: the program.
        limits: what each run may use.
        layers: what confines it; for tests.
        require: guarantees that must hold, see `rlinf.utils.sandbox.confine.GUARANTEES`.

    Raises:
        SandboxUnavailable: one of them cannot be held on this machine.
    """

    def __init__(
        self,
        code: str,
        limits: Limits | None = None,
        *,
        layers: Collection[str] = LAYERS,
        require: Collection[str] = GUARANTEES,
    ):
        self._limits = limits or Limits()
        self._keeper: ChildProcess | None = None
        if sys.platform != "linux":
            raise SandboxUnavailable(f"programs are run on Linux only, and this is {sys.platform}")
        self._keeper = ChildProcess(
            "rlinf.utils.sandbox.launcher",
            flags=("-I", "-S"),
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LANG": "C.UTF-8"},
        )
        try:
            hello = {"code": code, "layers": list(layers), **asdict(self._limits)}
            told = self._ask(hello, START_SECONDS)
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
        check: str | None = None,
        seconds: float | None = None,
    ) -> RunResult:
        """Run the program from its beginning.

        Args:
            stdin: what it can read.
            call: function of the program to call afterwards; a method, if there is a class
                `Solution` that has it.
            arguments: of that call, plain data.
            check: code that is run after the program, in its namespace, such as assertions.
            seconds: less time than the limits give.

        Raises:
            SandboxUnavailable: the sandbox itself failed.
        """
        question = {"stdin": stdin, "call": call, "arguments": list(arguments), "check": check}
        allowed = self._limits.seconds if seconds is None else min(seconds, self._limits.seconds)
        told = self._ask({**question, "seconds": allowed}, allowed + GRACE_SECONDS)
        if "setup" in told:
            raise SandboxUnavailable(f"the sandbox cannot be set up: {told['setup']}")
        return RunResult(**{name: told[name] for name in RESULT_FIELDS if name in told})

    def close(self) -> None:
        """End the sandbox and whatever is left in it."""
        if self._keeper is not None:
            # A keeper that ends by itself leaves no dead process for others to bury.
            self._keeper.close(CLOSE_SECONDS)

    def _ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._keeper is not None
        try:
            return json.loads(self._keeper.ask(json.dumps(question).encode(), seconds))
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
