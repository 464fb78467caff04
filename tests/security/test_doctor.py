"""What `rlinf doctor` says of files that other users can read, change or replace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.cli.health import ray_folders
from rlinf.cli.health.private_files import check_private_files
from rlinf.cli.health.ray_folders import check_ray_folders, check_temporary_folder, ray_roots
from rlinf.utils.ray_token import default_place, make_token
from rlinf.utils.runs.folders import new_run_folder
from tests.security.test_private_files import STRANGER

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


roots_of_processes = ray_folders._roots_of_processes


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder whose temporary folder other users can reach; no Ray of others is known."""
    before = os.umask(0o022)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(ray_folders, "_roots_of_processes", lambda: iter(()))
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    yield tmp_path
    os.umask(before)


@pytest.fixture
def temporary(home):
    """A folder of temporary files as machines have it, with a session of a Ray started by hand."""
    folder = home / "tmp"
    (folder / "ray" / "session_1").mkdir(parents=True)
    (folder / "ray" / "session_1").chmod(0o700)
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def run(home):
    run = new_run_folder(home / "logs" / "experiment")
    (run / "config.yaml").write_text("")
    return run


def bad(home, temporary) -> dict[str, list]:
    """What is not ok, by name."""
    found: dict[str, list] = {}
    for finding in check_private_files(home / "logs", {}, temporary):
        if finding.status != "ok":
            found.setdefault(finding.name, []).append(finding)
    return found


OPENED = {
    "ray token": [lambda home: home / ".ray/auth_token", 0o644, "can be read by other users"],
    "token folder": [lambda home: home / ".ray", 0o755, "is open to other users"],
    "home": [lambda home: home, 0o757, "put a token of theirs"],
    "run": [lambda home: next(home.glob("logs/*/*/")), 0o750, "other users can read"],
    "logs": [lambda home: home / "logs", 0o777, "rename and replace the runs"],
    "experiment": [lambda home: home / "logs/experiment", 0o777, "rename and replace the runs"],
    "session": [lambda home: home / "tmp/ray/session_1", 0o777, "other users can change"],
    "ray": [lambda home: home / "tmp/ray", 0o777, "every user can rename and replace your session"],
    "ray, by group": [lambda home: home / "tmp/ray", 0o775, "everybody in group"],
    "tmp": [lambda home: home / "tmp", 0o777, "every user can rename and replace what is yours"],
}


@pytest.mark.parametrize("which", OPENED)
def test_doctor_sees_what_is_open_and_says_how_to_close_it(home, temporary, run, which):
    find, mode, words = OPENED[which]
    make_token({})
    assert bad(home, temporary) == {}
    find(home).chmod(mode)
    ((finding,),) = bad(home, temporary).values()
    assert finding.status == "warn" and words in finding.found
    if which == "tmp":
        # Root's to mend: what follows is what a user does.
        assert "export TMPDIR=" in finding.fix
        return
    subprocess.run(finding.fix.split("; if")[0], shell=True, check=True)
    assert bad(home, temporary) == {}


RENAME = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    os.rename(sys.argv[1], sys.argv[1] + ".gone")
    os.mkdir(sys.argv[1])
except PermissionError:
    sys.exit(3)
"""


@NEEDS_ROOT
def test_what_doctor_warns_of_can_be_replaced_and_what_it_does_not_cannot(home, temporary):
    """As Ray leaves it, with every right for all; then as the fix does."""
    root = temporary / "ray"
    session = root / "session_1"

    def replaced() -> bool:
        done = subprocess.run([sys.executable, "-I", "-c", RENAME, str(session)])
        assert done.returncode in (0, 3)
        return done.returncode == 0

    root.chmod(0o777)
    (finding,) = check_ray_folders([root])
    assert finding.status == "warn" and replaced() and session.stat().st_uid == STRANGER
    session.rmdir()
    session.with_name("session_1.gone").rename(session)
    subprocess.run(finding.fix.split("; if")[0], shell=True, check=True)
    assert check_ray_folders([root])[0].status == "ok" and not replaced()
    # Nor where the folder is open, but above it is one that is closed.
    root.chmod(0o777)
    temporary.chmod(0o700)
    assert check_ray_folders([root])[0].status == "ok" and not replaced()


@NEEDS_ROOT
@pytest.mark.parametrize("kind", ["folder", "link", "loose link", "file"])
def test_a_folder_of_ray_that_another_user_has_made(temporary, kind):
    root = temporary / "theirs"
    if kind == "folder":
        root.mkdir()
    elif kind == "file":
        root.touch()
    else:
        root.symlink_to(temporary if kind == "link" else "/nowhere")
    os.chown(root, STRANGER, STRANGER, follow_symlinks=False)
    (finding,) = check_ray_folders([root])
    assert finding.status == "warn" and f"belongs to user {STRANGER}" in finding.found
    assert "--temp-dir" in finding.fix


def test_a_link_of_ones_own_is_followed(temporary):
    link = temporary / "link"
    link.symlink_to(temporary / "ray")
    assert check_ray_folders([link])[0].status == "ok"
    (temporary / "ray").chmod(0o777)
    assert check_ray_folders([link])[0].status == "warn"


@NEEDS_ROOT
def test_an_address_file_of_another_user(temporary):
    """`ray.init(address="auto")` believes it."""
    says = temporary / "ray" / "ray_current_cluster"
    says.write_text("10.0.0.66:6379")
    assert check_ray_folders([temporary / "ray"])[0].status == "ok"
    os.chown(says, STRANGER, STRANGER)
    (finding,) = check_ray_folders([temporary / "ray"])
    assert finding.status == "warn" and "`auto`" in finding.found and "RAY_ADDRESS" in finding.fix


@NEEDS_ROOT
def test_a_temporary_folder_of_another_user(temporary):
    os.chown(temporary, STRANGER, STRANGER)
    finding = check_temporary_folder(temporary)
    assert finding.status == "warn" and f"user {STRANGER} can rename" in finding.found


@pytest.mark.parametrize("kind", ["link", "file", pytest.param("folder", marks=NEEDS_ROOT)])
def test_a_name_that_another_user_has_taken(home, temporary, kind):
    own = temporary / f"rlinf-{os.getuid()}"
    if kind == "link":
        own.symlink_to("/nowhere")
    elif kind == "file":
        own.touch()
    else:
        own.mkdir()
        os.chown(own, STRANGER, STRANGER)
    ((finding,),) = bad(home, temporary).values()
    assert finding.name == "sessions" and "have taken its name" in finding.found


def test_the_folders_of_ray_are_those_that_ray_uses(monkeypatch):
    from ray._common.utils import get_default_ray_temp_dir

    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for environ in ({}, {"TMPDIR": "/a"}, {"TMPDIR": "/a", "RAY_TMPDIR": "/b"}):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert str(ray_roots(environ)[0]) == get_default_ray_temp_dir()


def test_a_ray_that_runs_elsewhere_is_looked_at(home, monkeypatch):
    """By what its process says, which here is one that only has the name."""
    monkeypatch.setattr(ray_folders, "_roots_of_processes", roots_of_processes)
    root = home / "elsewhere"
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", LOOKS_LIKE_RAY, f"--temp_dir={root}"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        assert root in ray_roots({}, home)
    finally:
        process.kill()
        process.communicate()


LOOKS_LIKE_RAY = """
import ctypes
ctypes.CDLL(None).prctl(15, b"raylet", 0, 0, 0)
print("ready", flush=True)
input()
"""


def test_a_token_in_the_environment_is_told(home, temporary):
    first = check_private_files(home / "logs", {"RAY_AUTH_TOKEN": "x"}, temporary)[0]
    assert first.status == "warn" and "RAY_AUTH_TOKEN_PATH" in first.fix


@NEEDS_ROOT
@pytest.mark.parametrize("whose", [default_place, lambda: default_place().parent])
def test_a_token_of_another_user_fails(home, temporary, whose):
    make_token({})
    os.chown(whose(), STRANGER, STRANGER)
    ((finding,),) = bad(home, temporary).values()
    assert finding.status == "fail" and finding.name == "ray token"
