from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.cli import main, recipes
from rlinf.config.load import shipped_folder
from rlinf.config.schema.root import TASKS

SCRIPT = """\
import sys
print("ran", *sys.argv[1:])
sys.exit(7)
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one example of its own, which is the current folder."""
    config = tmp_path / "examples" / "workers" / "config"
    config.mkdir(parents=True)
    (config / "mine.yaml").write_text("# Counts.\nrunner:\n  task_type: workers\n")
    (config / "_shared.yaml").write_text("example: {}\n")
    (config.parent / "main.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_task_type_has_an_entry() -> None:
    assert set(recipes.ENTRY_SCRIPTS) == set(TASKS)


def test_the_list_has_recipes_of_here_and_of_the_source_tree(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["mine", "Counts."] in lines
    assert any(line[0] == "worker_groups" for line in lines)
    assert not any(line[0] == "_shared" for line in lines)


LONG = (
    "# Learns to count to a hundred, then further,\n# and after that backwards.\n# Needs a GPU.\n"
)


def test_a_description_is_whole_outside_of_a_terminal(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    recipe = tree / "examples" / "workers" / "config" / "mine.yaml"
    recipe.write_text(LONG + recipe.read_text().partition("\n")[2])
    assert main(["train", "--list"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "mine" in line)
    assert line.endswith("Learns to count to a hundred, then further, and after that backwards.")


@pytest.mark.parametrize("columns", [70, 40])
def test_a_description_wraps_to_the_terminal(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    recipe = tree / "examples" / "workers" / "config" / "mine.yaml"
    recipe.write_text(LONG + recipe.read_text().partition("\n")[2])
    assert main(["train", "--list"]) == 0
    said = capsys.readouterr().out
    entry = said[said.index("  mine") : said.index("backwards.") + len("backwards.")]
    lines = entry.splitlines()
    assert len(lines) > 1 and all(len(line) <= columns for line in lines)
    # The description hangs below its beginning, or below the name where there is no room.
    hanging = lines[0].index("Learns") if columns == 70 else 6
    assert all(line.startswith(" " * hanging) and line[hanging] != " " for line in lines[1:])
    expected = "mine Learns to count to a hundred, then further, and after that backwards."
    assert " ".join(entry.split()) == expected


def test_the_script_gets_the_overrides_and_its_exit_code_is_kept(tree: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(shipped_folder())}
    done = subprocess.run(
        [sys.executable, "-m", "rlinf.cli", "train", "mine", "runner.seed=3", "example.a=1"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 7, done.stderr
    folder = tree / "examples" / "workers" / "config"
    expected = f"--config-path {folder} --config-name mine ++runner.seed=3 ++example.a=1"
    assert done.stdout.split("ran ")[1].strip() == expected


def test_a_path_works_from_anywhere(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "elsewhere.yaml"
    path.write_text("runner:\n  task_type: workers\n")
    assert main(["train", str(path), "--dry-run"]) == 0
    command = capsys.readouterr().out.split()
    # It belongs to no example, so the source tree's script runs it.
    assert command[1] == str(shipped_folder() / "examples/workers/main.py")
    assert command[-2:] == ["--config-name", "elsewhere"]


def test_a_wrong_name_shows_near_ones(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "min"]) == 1
    assert "did you mean 'mine'" in capsys.readouterr().err


def test_a_wrong_value_starts_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "mine", "runner.sede=3"]) == 1
    captured = capsys.readouterr()
    assert "runner.sede" in captured.err and "seed" in captured.err
    assert captured.out == ""


def test_eval_adds_only_eval(embodied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = embodied.parent / "embodiment" / "train_embodied_agent.py"
    config = script.parent / "config" / embodied.name
    config.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    embodied.rename(config)
    assert main(["eval", str(config), "--dry-run"]) == 0
    command = capsys.readouterr().out.split()
    assert command[1] == str(script)
    assert "++runner.only_eval=true" in command


def test_eval_of_what_trains_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "mine", "--dry-run"]) == 2
    assert "nothing to evaluate" in capsys.readouterr().err


def test_a_script_that_is_not_there(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(recipes.ENTRY_SCRIPTS, "workers", "examples/nowhere/main.py")
    assert main(["train", "mine"]) == 2
    assert "examples/nowhere/main.py" in capsys.readouterr().err


def test_train_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    assert "--list" in capsys.readouterr().err
