from __future__ import annotations

import subprocess
import sys

import pytest

from rlinf import __version__
from rlinf.cli import main


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; from rlinf.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print([name for name in ('torch', 'ray', 'hydra') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    )
    assert all(name in done.stdout for name in ("train", "eval", "export", "check", "doctor"))
    assert done.stdout.splitlines()[-1] == "[]"


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
