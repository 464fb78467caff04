"""`rlinf new` makes a whole project, and never touches what is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.cli.new import STANDIN, WrongName, check_name, template_files

ROOT = Path(__file__).resolve().parents[3]
FILES = {
    ".gitignore",
    "README.md",
    "config/arm.yaml",
    "pyproject.toml",
    "arm/__init__.py",
    "arm/env.py",
    "arm/policy.py",
    "arm/reward.py",
    "tests/test_arm.py",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rlinf(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a process of its own, which a project's modules do not outlive."""
    return subprocess.run(
        [sys.executable, "-m", "rlinf.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_all_files_are_there_under_the_name(here, capsys) -> None:
    assert main(["new", "arm"]) == 0
    said = capsys.readouterr().out
    assert files_of(here / "arm") == FILES
    assert all(f"  {file}\n" in said for file in FILES)
    assert said.endswith("next: cd arm && rlinf train arm\n")
    for file in FILES:
        assert STANDIN not in (here / "arm" / file).read_text()


def test_the_template_itself_is_complete() -> None:
    assert len(template_files()) == len(FILES)


def test_another_folder(here, capsys) -> None:
    assert main(["new", "arm", "--folder", "work/robot"]) == 0
    assert files_of(here / "work" / "robot") == FILES
    assert "cd work/robot && rlinf train arm" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["folder", "file", "broken link"])
def test_what_is_there_is_left_alone(kind: str, here, capsys) -> None:
    place = here / "arm"
    if kind == "folder":
        place.mkdir()
        (place / "README.md").write_text("mine")
    elif kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(here / "nowhere")
    before = files_of(here)
    assert main(["new", "arm"]) == 2
    assert files_of(here) == before
    said = capsys.readouterr().err
    assert "arm is there already" in said and "--folder" in said


def test_a_folder_that_cannot_be_written(here, capsys) -> None:
    (here / "file").write_text("")
    assert main(["new", "arm", "--folder", "file/arm"]) == 1
    said = capsys.readouterr().err
    assert "cannot be written: Not a directory" in said and "--folder" in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("MyRobot", "'my_robot' would do"),
        ("my-robot", "'my_robot' would do"),
        ("2d_arm", "'d_arm' would do"),
        ("../arm", "small letters, digits and _"),
        ("", "a letter comes first"),
        ("class", "a word of the Python language"),
        ("json", "a Python module that is installed"),
        ("rlinf", "a Python module that is installed"),
        ("tests", "another folder of a project"),
    ],
)
def test_wrong_names(given: str, words: str, here, capsys) -> None:
    assert main(["new", given]) == 2
    said = capsys.readouterr().err
    assert repr(given) in said and words in said
    assert files_of(here) == set()


def test_a_folder_of_the_same_name_elsewhere_is_no_module(here) -> None:
    (here / "arm").mkdir()
    check_name("arm")
    with pytest.raises(WrongName, match="such as 'my_torch'"):
        check_name("torch")


def test_the_recipe_is_listed_and_valid_without_any_variable(here) -> None:
    main(["new", "arm"])
    listed = rlinf(here / "arm", "train", "--list")
    assert "  arm " in listed.stdout, listed.stderr
    checked = rlinf(here / "arm", "check", "arm", "--no-memory")
    assert checked.returncode == 0, checked.stderr
    assert "arm: valid, task type embodied" in checked.stdout
    # From the wrong folder: the project's own folder looks like a package to Python.
    elsewhere = rlinf(here, "check", "arm/config/arm.yaml", "--no-memory")
    assert elsewhere.returncode == 1
    assert "run from the folder that holds arm" in elsewhere.stderr


def test_a_project_is_formatted_whatever_its_name(here) -> None:
    pytest.importorskip("ruff")
    main(["new", "zebra_in_a_maze"])
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "zebra_in_a_maze"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
