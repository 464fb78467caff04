from __future__ import annotations

import subprocess
import sys
import time

import pytest

from rlinf import __version__
from rlinf.cli import main


def test_help_names_every_command_and_is_fast() -> None:
    command = [sys.executable, "-m", "rlinf.cli", "--help"]
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        times.append(time.perf_counter() - begin)
    assert all(name in done.stdout for name in ("train", "eval", "export", "check", "doctor"))
    bare = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import argparse"], timeout=60, check=True)
    # The command's own share; the machine may be busy, so the interpreter's is measured too.
    assert min(times) - (time.perf_counter() - bare) < 0.3


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["trian"]])
def test_wrong_usage_says_what_is_allowed(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "COMMAND" in said
    assert not arguments or "'doctor'" in said
