"""A Python interpreter for models: a session per episode, in a sandbox, under limits."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from typing import Any

from rlinf.agents.tools.tool import ToolError, ToolFailed, tool
from rlinf.utils.processes.child import ChildFailed
from rlinf.utils.sandbox import values
from rlinf.utils.sandbox.confine import GUARANTEES
from rlinf.utils.sandbox.sandbox import Limits, Sandbox, SandboxUnavailable, Session
from rlinf.utils.sandbox.warm_parent import WarmParent

_MOST_CODE = 1 << 20
_CALLS_AT_A_TIME = max(4, 2 * (os.cpu_count() or 1))
_ENDS = {
    "timeout": "the code did not end within {seconds:g} s",
    "memory": "the code needs more than {memory_mb} MiB of memory",
    "output": "the code wrote more than {output_bytes} bytes past print",
}

_lock = threading.Lock()
_parent: WarmParent | None = None


def warm_parent() -> WarmParent:
    """Return the process that sandboxes of this process are forked from, started if need be."""
    global _parent
    with _lock:
        if _parent is None or not _parent.alive:
            if _parent is not None:
                _parent.close()
            _parent = WarmParent()
        return _parent


@tool(name="python", concurrency=_CALLS_AT_A_TIME)
class PythonInterpreter:
    """Run Python code.

    Names and files stay for the next call. Returns what the code prints, and the value of its last
    line.

    Args:
        code: Python, of any number of lines.
    """

    def __init__(
        self,
        seconds: float = 5.0,
        cpu_seconds: int = 60,
        memory_mb: int = 256,
        max_characters: int = 4096,
        brief_errors: bool = False,
        allow_weak_sandbox: bool = False,
    ) -> None:
        """Open a session.

        Args:
            seconds: time for each call.
            cpu_seconds: processor time of a session.
            memory_mb: memory of a session, its files included (MiB).
            max_characters: most that is kept of what a call prints.
            brief_errors: tell only the type of an exception.
            allow_weak_sandbox: go on where the machine cannot enforce all of the sandbox.

        Raises:
            SandboxUnavailable: this machine cannot confine the code.
        """
        self._limits = Limits(seconds, memory_mb, cpu_seconds=cpu_seconds)
        self._most, self._brief, self._setup = max_characters, brief_errors, ""
        self._session: Session | None = None
        require = () if allow_weak_sandbox else GUARANTEES
        try:
            self._sandbox = Sandbox(None, self._limits, require=require, parent=warm_parent())
        except ChildFailed as error:
            raise SandboxUnavailable(str(error)) from error

    @classmethod
    def prepare(cls, **options: Any) -> None:
        """Find out before a run whether this machine can confine the code.

        Raises:
            SandboxUnavailable: it cannot; says why.
        """
        session = cls(**options)
        try:
            session("0")
        finally:
            session.close()

    def begin(self, metadata: Mapping[str, Any]) -> None:
        """Run what the question brings along, `metadata["python_setup"]`, before anything else.

        Raises:
            ValueError: it fails.
        """
        self._setup = str(metadata.get("python_setup") or "")
        self._start()

    def __call__(self, code: str) -> str:
        """Run Python code; see the class."""
        if len(code) > _MOST_CODE:
            raise ToolError(f"the code has {len(code)} characters; at most {_MOST_CODE} are read")
        try:
            return self._run(code)
        except SandboxUnavailable as error:
            raise ToolFailed(str(error)) from error

    def close(self) -> None:
        """End the session and all that it has started."""
        self._sandbox.close()

    def _start(self) -> Session:
        """Start the interpreter, and bring it to where a question begins."""
        session = self._session = self._sandbox.interpret(self._most)
        if self._setup:
            session.send(values.encode({"code": self._setup}))
            reply = session.read(values.decode)
            if not _is_reply(reply) or reply["error"]:
                why = reply["error"] if _is_reply(reply) else session.end().status
                raise ValueError(f"python_setup of the question failed: {why}")
        return session

    def _run(self, code: str) -> str:
        session = self._session or self._start()
        session.send(values.encode({"code": code}))
        reply = session.read(values.decode)
        if not _is_reply(reply):
            raise self._ended()
        said = reply["printed"] + reply["value"]
        shown = said if len(said) <= self._most else f"{said[: self._most]}... (more was printed)"
        if reply["error"] and self._brief:
            raise ToolError(re.split(r"[:( ]", reply["error"])[0])
        if reply["error"]:
            raise ToolError(f"{shown}\n{reply['error']}" if shown.strip() else reply["error"])
        return shown.rstrip("\n")

    def _ended(self) -> ToolError:
        """Say why the session has ended; the next call begins another."""
        assert self._session is not None
        result = self._session.end()
        self._session = None
        limits = self._limits
        said = _ENDS.get(result.status, "the code ended the interpreter").format(
            seconds=limits.seconds, memory_mb=limits.memory_mb, output_bytes=limits.output_bytes
        )
        return ToolError(f"{said}; names and files of before are gone")


def _is_reply(reply: Any) -> bool:
    """Return whether this is what an interpreter says; the code may have written anything."""
    names = ("printed", "value", "error")
    return isinstance(reply, dict) and all(isinstance(reply.get(name), str) for name in names)
