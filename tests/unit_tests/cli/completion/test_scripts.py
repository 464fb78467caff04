"""The scripts, in the shells that are here."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.cli.completion import SCRIPTS, SHELLS

CASES = {
    "rlinf trai": ["train"],
    "rlinf train my_r": ["my_robot"],
    "rlinf train my_robot runner.max_st": ["runner.max_steps="],
    "rlinf train my_robot --dry": ["--dry-run"],
    "rlinf logs run --level W": ["WARNING"],
    "rlinf report ": ["logs/robot"],
    "rlinf train --config-path ": [],
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a recipe, a run, and the command."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "my_robot.yaml").write_text("runner: {seed: 1}\n")
    (tmp_path / "logs" / "robot" / "run" / "checkpoints").mkdir(parents=True)
    command = tmp_path / "bin" / "rlinf"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m rlinf.cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run(here: Path, *command: str) -> list[str]:
    root = Path(__file__).resolve().parents[4]
    environ = {
        **os.environ,
        "PATH": f"{here / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "HOME": str(here),
        "XDG_CACHE_HOME": str(here / ".cache"),
    }
    done = subprocess.run(command, cwd=here, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


def bash(here: Path, line: str) -> list[str]:
    """Returns what bash would offer at the end of a line."""
    program = (
        'source <(rlinf completion bash); COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=" =:"\n'
        # What is registered is what is called.
        "read -ra spec < <(complete -p rlinf); function=${spec[-2]}\n"
        '$function; ((${#COMPREPLY[@]})) && printf "%s\\n" "${COMPREPLY[@]}"; true'
    )
    return run(here, "bash", "-c", program, "bash", line)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == (SCRIPTS / f"rlinf.{shell}").read_text()


def test_the_help_shows_how_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "--help"])
    said = capsys.readouterr().out
    assert all(f"\n  {line}\n" in said for line in SHELLS.values())


@pytest.mark.parametrize(("line", "offered"), CASES.items())
def test_bash(line: str, offered: list[str], here: Path) -> None:
    assert bash(here, line) == offered


def test_bash_replaces_only_what_follows_an_equals_sign(here: Path) -> None:
    assert bash(here, "rlinf train my_robot runner.on_nan=s") == ["stop", "skip"]
    assert bash(here, "rlinf logs run --level=W") == ["WARNING"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish(here: Path) -> None:
    for line, offered in CASES.items():
        program = f"rlinf completion fish | source; complete -C {shlex.quote(line)}"
        found = run(here, "fish", "--no-config", "-c", program)
        assert not offered or [item.partition("\t")[0] for item in found] == offered


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_reads_the_script(here: Path) -> None:
    program = 'eval "$(rlinf completion zsh)"; print -r -- ${_comps[rlinf]}'
    assert run(here, "zsh", "-f", "-c", program) == ["_rlinf"]
