"""An encrypted run over two nodes, with Ray's token and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.scheduler.run_secret import TOLD_IN_CLEAR

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("encrypted_nodes.py")
OWN = ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def run(folder: Path, mode: str) -> tuple[dict, str]:
    """Runs the program with a home of its own; returns its result and what it said besides."""
    home = folder / "home"
    (home / ".ray").mkdir(parents=True)
    if mode == "token":
        token = home / ".ray" / "auth_token"
        token.write_text("0123456789abcdef" * 4)
        token.chmod(0o600)
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\nSTARTED_BY="$0" exec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name not in OWN}
    env |= {"PYTHONPATH": str(ROOT), "HOME": str(home), "RAY_AUTH_MODE": mode}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder / "logs"), str(interpreter)],
        env=env,
        capture_output=True,
        text=True,
        timeout=170,
    )
    said = done.stdout + done.stderr
    lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
    assert lines, said
    return json.loads(lines[0][len("RESULT ") :]), said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_two_nodes(tmp_path, mode):
    result, said = run(tmp_path, mode)
    assert result["exchanged"] == [True] * 4
    assert result["taken"] == list(range(20))
    near, far = result["facts"]
    assert far["home"] == "/nowhere" != near["home"]
    assert far["interpreter"] == str(tmp_path / "python") and near["interpreter"] is None
    assert near["derived"] == far["derived"] == (mode == "token")
    assert said.count(TOLD_IN_CLEAR) == (0 if mode == "token" else 1)
    assert set(far["sockets"]) == {"AF_INET TlsSocket"}, "all that is near is on another node"
    assert "AF_INET TlsSocket" in near["sockets"]
    assert "AF_INET socket" not in near["sockets"]
