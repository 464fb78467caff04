"""The default job of `make train`, run as a newcomer runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.config.load import shipped_folder


@pytest.mark.slow
def test_the_example_of_worker_groups(tmp_path: Path) -> None:
    overrides = ["example.numbers_per_worker=1000", f"cluster.log_dir={tmp_path / 'logs'}"]
    done = subprocess.run(
        [sys.executable, "-m", "rlinf.cli", "train", "worker_groups", *overrides],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(shipped_folder())},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4000 numbers, sums" in done.stdout
    assert "caught from a worker: ValueError: there is nothing to add" in done.stdout
    # Every key of the recipe has an effect.
    assert "never read" not in done.stderr
    assert "RUN FAILED" not in done.stderr
    logs = tmp_path / "logs" / "Producer"
    assert sorted(path.name for path in logs.glob("*.log")) == [f"rank_{i}.log" for i in range(4)]
    # Hydra's own files would only lie about in the user's folder.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]
