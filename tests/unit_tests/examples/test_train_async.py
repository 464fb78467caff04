"""The entry script of asynchronous runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "embodiment" / "train_async.py"


@pytest.mark.timeout(120)
def test_it_refuses_runs_that_take_turns(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "algorithm.max_policy_age=0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "algorithm.max_policy_age = 0" in done.stderr
    assert "set it to 1, or use train_embodied_agent.py" in done.stderr
    assert not list(tmp_path.iterdir()), "nothing was begun"
