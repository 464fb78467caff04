"""A patch makes the code of a run of its commit, whatever is in the files and the settings."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from rlinf.utils.runs import git_state
from rlinf.utils.runs.git_state import Git, GitUnknown


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository with one commit and settings of its own only."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "me")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "me@example.org")
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    write(
        folder, {"a.py": b"one\ntwo\nthree\n", "gone.py": b"x\n", "picture.png": bytes(range(256))}
    )
    write(folder, {".gitignore": b"ignored*\n", "same.py": b"pass\n"})
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def contents(folder: Path, but: tuple[str, ...] = ()) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts and path.name not in but
    }


def rebuilt(state, tmp_path: Path) -> Path:
    """Return a fresh clone at the commit, with the patch."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--no-local", str(state.folder), str(clone))
    git(clone, "checkout", "-q", state.commit)
    if state.patch:
        (tmp_path / "the.patch").write_bytes(state.patch)
        git(clone, "apply", str(tmp_path / "the.patch"))
    return clone


def test_a_clean_repository_has_no_patch(repository):
    state = Git(10).state(Git(10).top(repository / "."))
    assert state.commit == git(repository, "rev-parse", "HEAD") and state.branch == "trunk"
    assert not state.dirty and state.patch == b"" and state.left_out == {}


def test_the_patch_makes_the_same_code(repository, tmp_path):
    write(
        repository,
        {
            "a.py": b"one\n2\nthree\nno newline at the end",
            "picture.png": bytes(reversed(range(256))),
            "staged.py": b"staged\n",
            "new/config.yaml": "key: größer\r\n\n\n".encode(),
            "new/empty.py": b"",
            "new/one line.py": b"x",
            'new/odd "name" \t.py': b"y\n",
            "run.py": b"#!/usr/bin/env python\n",
            "notes.txt": b"not code\n",
            "ignored.py": b"not wanted\n",
        },
    )
    (repository / "run.py").chmod(0o755)
    (repository / "gone.py").unlink()
    git(repository, "add", "staged.py")
    state = Git(10).state(repository)
    assert state.dirty and state.left_out == {}
    assert sorted(state.changed) == ["a.py", "gone.py", "picture.png", "staged.py"]
    assert len(state.untracked) == 5 and "ignored.py" not in state.untracked
    clone = rebuilt(state, tmp_path)
    assert contents(clone) == contents(repository, but=("notes.txt", "ignored.py"))


def test_settings_of_the_user_do_not_spoil_the_patch(repository, tmp_path):
    for key, value in {
        "diff.noprefix": "true",
        "color.ui": "always",
        "diff.context": "0",
        "diff.external": "false",
        "diff.relative": "true",
        "status.relativePaths": "true",
    }.items():
        git(repository, "config", key, value)
    write(repository, {"a.py": b"one\n2\nthree\n", "deep/b.py": b"b\n"})
    state = Git(10).state(repository)
    assert contents(rebuilt(state, tmp_path)) == contents(repository)


def test_what_is_too_large_is_left_out_and_told(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(git_state, "MAX_FILE", 1000)
    monkeypatch.setattr(git_state, "MAX_PATCH", 1500)
    write(
        repository,
        {
            "a.py": b"one\n2\nthree\n",
            "same.py": b"x" * 2000,
            "data.yaml": b"y" * 2000,
            "b.py": (b"z" * 99 + b"\n") * 7,
            "c.py": (b"z" * 99 + b"\n") * 7,
        },
    )
    os.symlink("/etc/hostname", repository / "link.py")
    state = Git(10).state(repository)
    assert len(state.patch) <= 1500
    assert "1,000 bytes" in state.left_out["same.py"] and "1,000" in state.left_out["data.yaml"]
    assert "1,500 bytes" in state.left_out["c.py"]
    assert state.left_out["link.py"] == "not a plain file"
    clone = rebuilt(state, tmp_path)
    assert (clone / "a.py").read_bytes() == b"one\n2\nthree\n" and (clone / "b.py").exists()
    assert (clone / "same.py").read_bytes() == b"pass\n"


def test_a_long_change_is_left_out_by_name(repository, monkeypatch):
    # Small on the disk now, and large before.
    write(repository, {"long name.py": b"x\n" * 3000})
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    write(repository, {"long name.py": b"y\n"})
    monkeypatch.setattr(git_state, "MAX_FILE", 1000)
    assert "changes are larger" in Git(10).state(repository).left_out["long name.py"]


def test_what_runs_have_written_is_no_code(repository):
    write(
        repository, {"logs/x/1/config.yaml": b"{}", "logs/x/1/code/1/y.py": b"", "mine.yaml": b""}
    )
    (repository / "logs" / "x" / "1" / "summary.json").write_text("{}")
    assert Git(10).state(repository).untracked == ["mine.yaml"]


def test_detached_and_unborn(repository, tmp_path):
    git(repository, "checkout", "-q", "--detach")
    assert Git(10).state(repository).branch is None
    unborn = tmp_path / "unborn"
    unborn.mkdir()
    git(unborn, "init", "-q")
    write(unborn, {"a.py": b"x\n"})
    git(unborn, "add", "a.py")
    state = Git(10).state(unborn)
    assert state.commit is None and state.dirty
    assert state.left_out == {"a.py": "there is no commit yet"}


def test_the_environment_does_not_lead_elsewhere(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert Git(10).top(repository) == repository.resolve()
    assert Git(10).tracks(repository / "a.py")


def test_nothing_in_the_repository_changes(repository):
    write(repository, {"a.py": b"x\n", "new.py": b"y\n"})
    os.utime(repository / "same.py", (0, 0))
    before = {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")}
    state = Git(10).state(repository)
    assert b"same.py" not in state.patch and state.changed == ["a.py"]
    assert {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")} == before


def test_no_repository_and_no_git(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(GitUnknown, match="not a git repository"):
        Git(10).top(tmp_path)
    assert not Git(10).tracks(tmp_path / "a.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitUnknown, match="no git"):
        Git(10).top(tmp_path)


def test_git_that_hangs_is_ended(tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    fake = tmp_path / "git"
    fake.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {pid}.part; mv {pid}.part {pid}\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    begin = time.monotonic()
    with pytest.raises(GitUnknown, match="did not answer within 1 s"):
        Git(1).top(tmp_path)
    assert time.monotonic() - begin < 60
    # What git had started is gone as well.
    child = int(pid.read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_questions_share_the_time(tmp_path):
    late = Git(0.0)
    with pytest.raises(GitUnknown, match="did not answer"):
        late.top(tmp_path)
