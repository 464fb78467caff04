"""The folder of a run says which code it ran, and saying so never ends the run."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from rlinf.utils import disk
from rlinf.utils.runs import RunSummary, provenance
from rlinf.utils.runs.git_state import Git
from rlinf.utils.runs.provenance import git_facts, installed_packages, record_code

ROOT = Path(__file__).resolve().parents[4]
SECRET = secrets.token_hex(8)


def record(run: Path, number: int = 1) -> dict:
    return json.loads((run / "code" / str(number) / "code.json").read_text())


@pytest.fixture
def user_repository(tmp_path, monkeypatch) -> Path:
    """The current folder: a repository that is not this one, with a change and a secret remote."""
    folder = tmp_path / "mine"
    folder.mkdir()
    me = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    (folder / "env.py").write_text("old\n")
    for arguments in (
        ["init", "-q", "-b", "trunk"],
        ["remote", "add", "origin", f"https://me:{SECRET}@example.org/mine.git"],
        ["add", "."],
        [*me, "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    (folder / "env.py").write_text("new\n")
    monkeypatch.chdir(folder)
    return folder


def test_both_repositories_are_recorded_without_their_remotes(tmp_path, user_repository):
    run = tmp_path / "run"
    record_code(run)
    facts = record(run)
    mine = facts["current_folder"]
    assert mine["folder"] == str(user_repository.resolve()) and mine["branch"] == "trunk"
    assert mine["dirty"] and mine["changed"] == ["env.py"] and mine["left_out"] == {}
    assert "+new" in (run / "code" / "1" / mine["patch"]).read_text()
    for file in (run / "code").rglob("*"):
        assert file.is_dir() or SECRET not in file.read_text()
    if (ROOT / ".git").exists():
        head = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", "HEAD"], text=True)
        assert facts["rlinf"]["commit"] == head.strip()
        assert git_facts(run)["commit"] == head.strip()
    assert git_facts(run)["current_folder"] == {
        "commit": mine["commit"],
        "branch": "trunk",
        "dirty": True,
    }
    assert RunSummary(run).facts["git"] == git_facts(run)


def test_a_run_that_goes_on_keeps_the_first_record(tmp_path, user_repository):
    run = tmp_path / "run"
    record_code(run)
    first = record(run)
    (user_repository / "env.py").write_text("old\n")
    record_code(run)
    assert record(run) == first
    assert not record(run, 2)["current_folder"]["dirty"]
    assert not git_facts(run)["current_folder"]["dirty"]


def test_one_repository_is_recorded_once(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "tests")
    try:
        is_clone = Git(10).tracks(ROOT / "rlinf" / "__init__.py")
    except provenance.GitUnknown:
        is_clone = False
    if not is_clone:
        pytest.skip("these tests do not run in a clone")
    record_code(tmp_path)
    assert record(tmp_path)["current_folder"]["same_as"] == "rlinf"
    assert "current_folder" not in git_facts(tmp_path)


def test_a_package_inside_of_another_repository_is_not_taken_for_it(user_repository, monkeypatch):
    """As in a virtual environment in the user's folder, which git ignores."""
    place = user_repository / ".venv" / "rlinf"
    for name in ("utils", "utils/runs"):
        (place / name).mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(place / "utils" / "runs" / "provenance.py"))
    record_code(user_repository / "run")
    assert "not from a repository" in record(user_repository / "run")["rlinf"]["reason"]


def test_without_git_the_record_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    record_code(tmp_path / "run")
    facts = record(tmp_path / "run")
    assert "no git" in facts["rlinf"]["reason"] and "no git" in facts["current_folder"]["reason"]
    assert git_facts(tmp_path / "run") == {}
    assert "rlinf==" in (tmp_path / "run" / "code" / "1" / "packages.txt").read_text()
    assert capsys.readouterr().err == ""


def test_outside_of_a_repository_the_record_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    record_code(tmp_path / "run")
    assert "not a git repository" in record(tmp_path / "run")["current_folder"]["reason"]


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(disk, "_told", set())
    (tmp_path / "code").write_text("a file in the way")
    record_code(tmp_path)
    assert "the record of the code cannot be written" in capsys.readouterr().err
    assert git_facts(tmp_path) == {}


def test_a_current_folder_that_is_gone_costs_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(disk, "_told", set())
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        record_code(tmp_path / "run")
    finally:
        os.chdir(tmp_path)
    assert "the run goes on" in capsys.readouterr().err


def test_packages_have_their_versions():
    found = dict(line.split("==") for line in installed_packages())
    for name in ("torch", "numpy", "pydantic", "rlinf"):
        assert found[name] == metadata.version(name)
    assert list(found) == sorted(
        found, key=lambda name: name.lower().replace("_", "-").replace(".", "-")
    )
