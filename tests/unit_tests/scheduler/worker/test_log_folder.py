"""Logs of several users of a machine do not meet, and a folder that cannot be used is told."""

from __future__ import annotations

import os
import stat
import tempfile

import pytest

from rlinf.scheduler import ClusterError
from rlinf.scheduler.worker.log_folder import default_log_dir, prepare_log_dir


@pytest.fixture
def as_user(monkeypatch, tmp_path):
    """Takes the temporary folder for an empty one, and this process for another user's."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))

    def become(uid: int):
        monkeypatch.setattr(os, "getuid", lambda: uid)

    return become


def test_each_user_has_a_folder_that_others_cannot_enter(as_user, tmp_path):
    me = os.getuid()
    folder = default_log_dir("run")
    prepare_log_dir(folder)
    assert folder == tmp_path / f"rlinf-{me}" / "run" and folder.is_dir()
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    as_user(me + 1)
    assert default_log_dir("run").parent != folder.parent


def test_a_second_run_uses_the_folder_and_closes_it_to_others(as_user, tmp_path):
    own = default_log_dir("run").parent
    own.mkdir(mode=0o755)
    os.chmod(own, 0o755)
    prepare_log_dir(default_log_dir("run"))
    prepare_log_dir(default_log_dir("run"))
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_refused(as_user, tmp_path):
    me = os.getuid()
    as_user(me + 1)
    default_log_dir("run").parent.mkdir()
    with pytest.raises(ClusterError, match=f"belongs to user {me}; set cluster.log_dir.*TMPDIR"):
        prepare_log_dir(default_log_dir("run"))


def test_a_link_is_refused(as_user, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    default_log_dir("run").parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match="is a link; set cluster.log_dir"):
        prepare_log_dir(default_log_dir("run"))


def test_a_folder_that_cannot_be_made_or_written_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="cannot be made.*Not a directory.*cluster.log_dir"):
        prepare_log_dir(tmp_path / "file" / "logs")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ClusterError, match="may not write.*cluster.log_dir"):
        prepare_log_dir(tmp_path / "logs")
