"""What other users of this machine can read: tokens, keys, folders of runs, sessions of Ray."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlinf.scheduler.cluster import ray_session
from rlinf.scheduler.collective import shm_budget
from rlinf.utils.logger_keys import LOGGER_KEYS, hidden_logger_keys
from rlinf.utils.processes.pool import ProcessPool, ProcessSpec
from rlinf.utils.ray_token import default_place, make_token
from rlinf.utils.runs.folders import new_run_folder

STRANGER = 65534
"""Another user."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    # Nothing is private by the caller's mask alone.
    before = os.umask(0)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    yield tmp_path
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_token_is_made_for_its_owner_alone(home):
    make_token({})
    place = default_place()
    assert (mode(place), mode(place.parent)) == (0o600, 0o700)
    token = place.read_text()
    assert len(token) == 64
    make_token({})
    assert place.read_text() == token and os.listdir(place.parent) == [place.name]


def test_a_token_that_ray_has_left_open_is_closed(home):
    place = default_place()
    place.parent.mkdir(mode=0o755)
    place.write_text("t" * 64)
    place.chmod(0o644)
    make_token({})
    assert (mode(place), mode(place.parent)) == (0o600, 0o700)
    assert place.read_text() == "t" * 64


def test_many_at_once_make_one_token(home):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: make_token({}), range(64)))
    assert len(default_place().read_text()) == 64
    assert os.listdir(default_place().parent) == ["auth_token"]


@pytest.mark.parametrize(
    "environ",
    [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "x"}, {"RAY_AUTH_TOKEN_PATH": "/"}],
)
def test_no_token_is_made_where_another_is_used(home, environ):
    make_token(environ)
    assert not default_place().parent.exists()


def test_ray_uses_the_token_that_was_made(home):
    """Ray looks for it in the same place."""
    code = (
        "from pathlib import Path\n"
        "from ray._private.authentication import authentication_token_setup as setup\n"
        "print(setup._get_default_token_path())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(default_place())


def test_run_folders_are_for_their_owner_alone(home):
    folder = new_run_folder(home / "logs" / "experiment")
    assert mode(folder) == 0o700
    # Whoever can write above it could put another one in its place.
    assert not any(mode(above) & 0o002 for above in (folder.parent, folder.parents[1]))


@pytest.fixture
def temporary(home, monkeypatch):
    """An empty folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    monkeypatch.setattr(ray_session, "_LONGEST_ROOT", 1000)
    return home


def take(folder):
    folder.mkdir()
    os.chown(folder, STRANGER, STRANGER)


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(take, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")),
        lambda folder: folder.symlink_to("/var/tmp"),
        lambda folder: folder.symlink_to("/nowhere"),
        lambda folder: folder.touch(),
        lambda folder: None,
        lambda folder: folder.mkdir(mode=0o777),
    ],
    ids=["a stranger's", "a link", "a loose link", "a file", "free", "open"],
)
def test_sessions_of_ray_are_where_no_other_user_can_rename_them(temporary, taken):
    """Nor can anybody who has taken the name of the folder before keep a run from starting."""
    folder = temporary / f"rlinf-{os.getuid()}"
    taken(folder)
    above = ray_session._session_root().parent
    try:
        assert not above.is_symlink() and above.stat().st_uid == os.geteuid()
        assert mode(above) == 0o700
    finally:
        above.rmdir()


def test_a_long_name_of_the_temporary_folder_leaves_room_for_sockets(temporary, monkeypatch):
    monkeypatch.setattr(ray_session, "_LONGEST_ROOT", len(str(temporary)))
    above = ray_session._session_root().parent
    assert above.parent == Path("/tmp") and mode(above) == 0o700
    above.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_tables_that_others_have_made_are_not_used(home):
    """A stranger could keep the lock of such a one, and with it the run."""
    places = [str(home / "memory"), str(home / "tmp")]
    for place in places:
        Path(place).touch(mode=0o666)
        os.chown(place, STRANGER, STRANGER)
    descriptor, path = shm_budget._open_first(places)
    os.close(descriptor)
    assert path not in places and mode(Path(path)) == 0o600


@pytest.mark.parametrize(
    "taken",
    [lambda path: path.symlink_to("/nowhere"), lambda path: path.mkdir(), os.mkfifo],
    ids=["a link", "a folder", "a pipe"],
)
def test_tables_whose_names_are_taken_do_not_stop_a_run(home, taken):
    place = home / "memory"
    taken(place)
    descriptor, path = shm_budget._open_first([str(place)])
    os.close(descriptor)
    assert path != str(place) and Path(path).is_file()


def test_a_table_that_is_a_second_name_of_a_file_is_not_written_to(home):
    mine, place = home / "mine", home / "memory"
    mine.write_text("mine")
    os.link(mine, place)
    descriptor, path = shm_budget._open_first([str(place)])
    os.close(descriptor)
    assert path != str(place) and mine.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
@pytest.mark.parametrize("whose", [default_place, lambda: default_place().parent])
def test_a_token_of_another_user_is_not_used(home, whose):
    """As where a home folder is open to all: who made the token can join, and run code."""
    make_token({})
    os.chown(whose(), STRANGER, STRANGER)
    with pytest.raises(ValueError, match=f"belongs to user {STRANGER}, who can let anybody"):
        make_token({})


def make_environment():
    return lambda: {name: os.environ.get(name) for name in LOGGER_KEYS}


def test_keys_of_loggers_do_not_reach_reward_processes(monkeypatch):
    for name in LOGGER_KEYS:
        monkeypatch.setenv(name, "key")
    pool = ProcessPool(ProcessSpec(f"{__name__}:make_environment", confined=False))
    try:
        assert pool.map([()])[0].value == dict.fromkeys(LOGGER_KEYS)
    finally:
        pool.close()
    with hidden_logger_keys():
        assert not set(LOGGER_KEYS) & set(os.environ)
    assert all(os.environ[name] == "key" for name in LOGGER_KEYS)


STARTED = """
import os, ray
from pathlib import Path
from rlinf.scheduler.cluster.ray_session import RaySession
session = RaySession(None, dashboard=False, num_cpus=1, namespace="x")
folder = Path(ray._private.worker._global_node.get_session_dir_path())
see = ray.remote(lambda: [os.environ.get("WANDB_API_KEY"), os.environ.get("SWANLAB_API_KEY")])
token = Path.home() / ".ray" / "auth_token"
modes = [oct(path.stat().st_mode & 0o777) for path in (folder, folder.parents[1], token)]
print("RESULT", *modes, ray.get(see.remote()), os.environ["WANDB_API_KEY"])
session.close()
"""


@pytest.mark.slow
def test_a_ray_that_is_started_is_closed_to_others_and_has_no_keys(home):
    environ = {**os.environ, "HOME": str(home), "WANDB_API_KEY": "k", "SWANLAB_API_KEY": "k"}
    root = str(Path(__file__).resolve().parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", STARTED], env=environ, capture_output=True, text=True, timeout=110
    )
    assert "RESULT 0o700 0o700 0o600 [None, None] k" in done.stdout, done.stdout + done.stderr
