"""Folders of root can be reached by others in a mount namespace, and nothing beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.utils.sandbox import namespaces

ROOT = str(Path(__file__).resolve().parents[4])

PROGRAM = """
import os, sys
sys.path.insert(0, {root!r})
from rlinf.utils.sandbox import namespaces
if not namespaces.enter().mounts:
    print("skip")
    sys.exit()
namespaces.open_way([{library!r}, {library!r} + "/inner", {file!r}])
assert namespaces.readable_to_all([{library!r}, {file!r}])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(open({library!r} + "/inner/text").read(), open({file!r}).read(), os.listdir({closed!r}))
"""


def test_who_can_read_what(tmp_path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.touch()
    for path in (tmp_path, *tmp_path.parents[:2], folder):
        path.chmod(0o755)
    file.chmod(0o644)
    assert namespaces.readable_to_all([str(folder), str(file)])
    file.chmod(0o600)
    assert not namespaces.readable_to_all([str(folder), str(file)])
    folder.chmod(0o744)
    assert not namespaces.readable_to_all([str(folder)])
    tmp_path.chmod(0o700)
    assert namespaces.closed_parent(folder / "inner") == tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders that nobody can reach")
def test_a_way_is_opened_to_the_library_and_to_nothing_else(tmp_path):
    closed = tmp_path / "closed"
    library = closed / "deep" / "lib"
    (library / "inner").mkdir(parents=True)
    (library / "inner" / "text").write_text("library")
    (closed / "deep" / "archive.zip").write_text("archive")
    (closed / "secret").write_text("secret")
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    closed.chmod(0o700)
    program = PROGRAM.format(
        root=ROOT,
        library=str(library),
        file=str(closed / "deep" / "archive.zip"),
        closed=str(closed),
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if done.stdout == "skip\n":
        pytest.skip("no mount namespaces here")
    assert done.stdout == "library archive ['deep']\n"
    # The rest of the machine has noticed nothing.
    assert sorted(os.listdir(closed)) == ["deep", "secret"]
