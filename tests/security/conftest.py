"""Attacks: each is a small program that succeeded once. The end of the run names the layers."""

from __future__ import annotations

import platform
import sys

import pytest

from rlinf.utils.sandbox.sandbox import Limits, Sandbox, SandboxUnavailable

PATIENT = Limits(seconds=30.0, memory_mb=512, output_bytes=1 << 20)
"""For programs that end by themselves, if only when the machine has time for them."""

_layers: list[str] = []


@pytest.fixture(scope="session")
def enforced():
    """What this machine enforces; skips where it cannot confine a program at all."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("programs are confined on Linux only")
    try:
        with Sandbox("", PATIENT, require=()) as sandbox:
            found = sandbox.enforced
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    _layers[:] = [str(found), *(f"{layer}: {why}" for layer, why in found.problems.items())]
    if found.missing:
        pytest.skip(f"this machine cannot confine a program: {found}")
    return found


def pytest_terminal_summary(terminalreporter) -> None:
    if _layers:
        terminalreporter.section("layers of the sandbox on this machine")
        for line in _layers:
            terminalreporter.line(line)
