"""What is said where a user has typed a run that is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlinf.cli import main
from rlinf.cli.runs.find import not_a_run
from tests.unit_tests.cli.runs.made_runs import make_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made_at(folder: Path, seconds: int) -> Path:
    os.utime(make_run(folder), (seconds, seconds))
    return folder


def test_the_newest_runs_are_those_that_were_changed_last(here: Path) -> None:
    made_at(here / "logs/zebra/1", 1000)
    made_at(here / "logs/apple/2", 4000)
    made_at(here / "logs/mine/3", 2000)
    made_at(here / "logs/other/0", 3000)
    newest = "logs/apple/2, logs/other/0, logs/mine/3"
    assert not_a_run("x") == f"there is no run at x; the newest runs in logs: {newest}"


def test_a_folder_with_a_config_is_no_run_for_that(here: Path) -> None:
    make_run(here / "logs/mine/1")
    (here / "logs/recipes").mkdir()
    (here / "logs/recipes/config.yaml").write_text("{}")
    (here / "logs/saved/checkpoints").mkdir(parents=True)
    assert "recipes" not in not_a_run("x") and "recipes" not in not_a_run("recipe")
    assert not_a_run("save").endswith("did you mean logs/saved?")


@pytest.mark.parametrize(
    ("folder", "typed", "meant"),
    [
        ("", "mime", "logs/mine"),
        ("logs", "mime", "mine"),
        ("logs/mine", "fisrt", "first"),
        ("logs/mine", "mime", None),
    ],
)
def test_a_name_is_known_from_above_the_logs_and_from_inside(
    here: Path, monkeypatch: pytest.MonkeyPatch, folder: str, typed: str, meant: str | None
) -> None:
    make_run(here / "logs/mine/first")
    monkeypatch.chdir(here / folder)
    end = f"did you mean {meant}?" if meant else "the newest runs in .: first"
    assert not_a_run(typed) == f"there is no run at {typed}; {end}"


def test_a_folder_that_may_not_be_entered_is_passed_over(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(here / "logs/mine/1")
    make_run(here / "logs/theirs")
    # The tests may run as a user who may enter all folders.
    closed, stat = f"{here}/logs/theirs/", os.stat

    def guarded(path, *args, **settings):
        if not isinstance(path, int) and os.path.abspath(os.fspath(path)).startswith(closed):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return stat(path, *args, **settings)

    monkeypatch.setattr(os, "stat", guarded)
    with pytest.raises(SystemExit, match="2"):
        main(["report", "logs/mime"])
    assert "no run at logs/mime; did you mean logs/mine?" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["report", "logs/theirs/run"])
    assert "there is no run at logs/theirs/run" in capsys.readouterr().err
