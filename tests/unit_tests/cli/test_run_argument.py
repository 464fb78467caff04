"""Commands that look at a run say so if there is none, and name those nearby."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.cli import main
from tests.unit_tests.cli.runs.made_runs import make_run


@pytest.mark.parametrize("command", ["report", "trace", "logs", "stop", "checkpoint"])
def test_a_run_that_is_not_there(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("1", "2", "3", "4"):
        make_run(tmp_path / "logs" / "mine" / name)
    with pytest.raises(SystemExit) as ended:
        main([command, "logs/nothing"])
    newest = "logs/mine/4, logs/mine/3, logs/mine/2"
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.endswith(f"no run at logs/nothing; the newest runs in logs: {newest}\n")
