"""Programs that stand for Ray and SLURM, so that scripts can be watched without them."""

from __future__ import annotations

import json
import shlex
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RAY = """
import json, os
def init(**options):
    with open(os.environ["CALLS"], "a") as calls:
        print("init", options["address"], os.environ.get("RAY_AUTH_MODE"), file=calls)
def nodes():
    return states.pop(0) if states[1:] else states[0]
def shutdown():
    pass
states = json.loads(os.environ["STATES"])
"""


class Bench:
    """A folder with stand-ins on PATH, which write down how they were called.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "CALLS": str(self.calls),
            "RLINF_HEAD_FILE": str(folder / "head"),
            "RLINF_START_TIMEOUT": "1",
            "RLINF_NODE_IP": "127.0.0.1",
        }
        (folder / "home").mkdir()
        self.program("python3", f'exec {shlex.quote(sys.executable)} "$@"')
        self.program("ray", self.record("$RLINF_NODE_RANK", "$RAY_AUTH_MODE"))

    def record(self, *variables: str) -> str:
        """A line of a program that writes its arguments and some variables down."""
        shown = " ".join(["${0##*/}", '"$*"', *variables])
        return f'echo {shown} >> "$CALLS"'

    def program(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def called(self, name: str) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{name} ")]

    def token(self, text: str = "secret") -> None:
        """Puts a token where Ray looks for it."""
        file = Path(self.env["HOME"]) / ".ray" / "auth_token"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def fake_ray(self, *states: list[dict]) -> None:
        """Makes a package `ray` whose nodes are these, one state after the other."""
        packages = self.folder / "packages"
        packages.mkdir(exist_ok=True)
        (packages / "ray.py").write_text(RAY)
        self.env |= {"PYTHONPATH": str(packages), "STATES": json.dumps(states)}

    def run(self, *command: str, **env: str | None) -> subprocess.CompletedProcess[str]:
        wanted = {k: v for k, v in {**self.env, **env}.items() if v is not None}
        return subprocess.run(
            [str(word) for word in command], env=wanted, capture_output=True, text=True, timeout=60
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def listening() -> Iterator[int]:
    """A port where somebody listens, as a head does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
