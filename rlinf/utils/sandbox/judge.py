"""`Judge`: runs checks on programs; each has a process of its own, and only values pass between."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rlinf.utils.sandbox import values
from rlinf.utils.sandbox.confine import GUARANTEES, LAYERS
from rlinf.utils.sandbox.sandbox import Limits, RunResult, Sandbox, SandboxUnavailable, Session


class CheckRefused(ValueError):
    """A check that cannot be judged; says why."""


class Judge:
    """Runs checks, in a sandbox that serves all of them.

    Args:
        limits: what each check may use.
        layers: what confines it; for tests.
        require: guarantees that must hold.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        layers: Collection[str] = LAYERS,
        require: Collection[str] = GUARANTEES,
    ):
        self._limits, self._layers, self._require = limits or Limits(), layers, require
        self._sandbox: Sandbox | None = None

    def run(self, program: Sandbox, check: str, seconds: float | None = None) -> RunResult:
        """Run a program from its beginning, then a check of it.

        Args:
            program: the program.
            check: code that asserts something of the program's functions, see
                `rlinf.utils.sandbox.check_process` for what it may do.
            seconds: less time than the limits give.

        Returns:
            What became of the program; its value is True if the check passed, else False.

        Raises:
            CheckRefused: the check cannot be judged.
            SandboxUnavailable: a sandbox failed.
        """
        try:
            if self._sandbox is None:
                self._sandbox = Sandbox(
                    None, self._limits, layers=self._layers, require=self._require
                )
            return self._run(self._sandbox, program, check, seconds)
        except SandboxUnavailable:
            # The next check has a new one.
            self.close()
            raise

    def _run(
        self, sandbox: Sandbox, program: Sandbox, check: str, seconds: float | None
    ) -> RunResult:
        asked = program.serve(seconds)
        asker = sandbox.run_check(check, seconds)
        verdict = _relay(asker, asked)
        result, own = asked.end(), asker.end()
        if verdict is None:
            # One of them had no time left, or broke off: the program, if it was that.
            return replace(own if result.status == "ok" else result, value=False)
        if verdict["verdict"] == "refused":
            raise CheckRefused(f"the check {check[:200]!r} cannot be judged: {verdict['why']}")
        passed = verdict["verdict"] == "passed" and result.status == "ok"
        return replace(result, value=passed)

    def close(self) -> None:
        """End the sandbox of checks."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def _relay(asker: Session, asked: Session) -> dict[str, Any] | None:
    """Carry requests of a check to the program, and values back; return the verdict.

    Both are read here first: what is not a message goes no further.
    """
    request = asker.read(_read_request)
    while request is not None and "verdict" not in request:
        asked.send(asker.message)
        if asked.read(_read_reply) is None:
            return None
        asker.send(asked.message)
        request = asker.read(_read_request)
    return request


def _read_request(data: bytes) -> dict[str, Any]:
    message = values.decode(data, lambda number: number)
    if not isinstance(message, dict) or not message.keys() & {"verdict", "do"}:
        raise values.BadValue("is not a request")
    return message


def _read_reply(data: bytes) -> dict[str, Any]:
    message = values.decode(data, lambda number: number)
    if not isinstance(message, dict) or list(message) not in (["value"], ["raised"]):
        raise values.BadValue("is not a reply")
    raised = message.get("raised", ["", ""])
    if not isinstance(raised, list) or [type(part) for part in raised] != [str, str]:
        raise values.BadValue("is not an exception")
    return message
