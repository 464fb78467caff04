"""The benchmark of large vision-language-action policies, in small and on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.gpu_vla import main
from rlinf.envs import can_render
from tests.long_tests import long_test

MODES = ["collocated", "disaggregated", "hybrid, 1 stage", "hybrid, 2 stages"]
SMALL = ["--tiny", "--steps", "2", "--envs", "16", "--workers", "2", "--micro", "2"]


@long_test
@pytest.mark.timeout(900)
def test_all_modes_are_measured_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    able, reason = can_render()
    if not able:
        pytest.skip(reason)
    assert main(["--out", str(tmp_path), "--parts", "modes", *SMALL]) == 0
    out = capsys.readouterr().out
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [row["run"] for row in rows] == MODES
    assert all(row["steps"] == 2 and row["agreement"] < 1e-3 for row in rows)
    for row in rows:
        with Image.open(
            tmp_path / f"{row['run'].replace(' ', '_').replace(',', '')}.png"
        ) as picture:
            assert picture.width == 1200


def test_runs_that_fail_are_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Seven envs cannot be groups of eight; nothing starts."""
    arguments = ["--out", str(tmp_path), "--parts", "full", "--tiny", "--envs", "7", "--steps", "1"]
    assert main(arguments) == 1
    assert "FAILED full" in capsys.readouterr().out
