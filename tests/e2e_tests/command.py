"""The command `rlinf`, as users type it, in tests of whole jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def rlinf(folder: Path, address: str, *arguments: str, seconds: float = 200) -> str:
    """Run the command in a folder; return what it said.

    Args:
        folder: where it runs.
        address: of the Ray that it joins.
        arguments: what stands behind `rlinf`.
        seconds: after which it is ended, and the test fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", "rlinf.cli", *arguments],
        cwd=folder,
        env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
