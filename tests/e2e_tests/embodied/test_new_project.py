"""A project that `rlinf new` makes: it learns, and its own tests pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.utils.runs import find_run


def run(folder: Path, address: str, module: str, *arguments: str) -> str:
    """Runs a module as a program; returns what it said."""
    environ = {name: value for name, value in os.environ.items() if name != "RLINF_EXT_MODULE"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_a_new_project_trains_as_it_is(tmp_path: Path, ray_address: str) -> None:
    run(tmp_path, ray_address, "rlinf.cli", "new", "pilot")
    project = tmp_path / "pilot"
    said = run(project, ray_address, "rlinf.cli", "train", "pilot")
    assert "never read" not in said
    summary = json.loads((find_run(project / "logs" / "pilot") / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["evaluation"]["eval/success_once"] > 0.9
    kept = run(project, ray_address, "rlinf.cli", "eval", "logs/pilot", "runner.eval_episodes=20")
    assert "over 20 episodes" in kept
    assert "keeps the contract" in run(project, ray_address, "rlinf.cli", "check-env", "pilot")
    assert "passed" in run(project, ray_address, "pytest", "-q")
