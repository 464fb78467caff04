from __future__ import annotations

import subprocess
import sys

import pytest

from rlinf import __version__
from rlinf.cli import main


def test_help_names_every_command_and_loads_nothing_that_it_does_not_need() -> None:
    program = (
        "import sys; from rlinf.cli import main\n"
        "late = ('torch', 'ray', 'hydra', 'rlinf.cli.runs.find')\n"
        "try: main(['--help'])\n"
        "finally: print([name for name in late if name in sys.modules])\n"
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


def test_alone_it_shows_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "COMMAND" in said and "rlinf train metaworld_ppo_mlp" in said


@pytest.mark.parametrize(
    "typed, meant", [("trian", "'train'"), ("reprot", "'report'"), ("xyz", "")]
)
def test_a_mistyped_command_gets_a_suggestion(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([typed])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert f"there is no command '{typed}'" in said and "doctor" in said
    assert (f"did you mean {meant}?" in said) is bool(meant)
