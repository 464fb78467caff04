"""Programs that look for what is not theirs: descriptors, files, secrets, the rights of root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf.utils.sandbox.confine import GUARANTEES, LAYERS
from rlinf.utils.sandbox.sandbox import Sandbox, SandboxUnavailable
from tests.security.conftest import PATIENT

pytestmark = pytest.mark.usefixtures("enforced")

DESCRIPTORS = """
import os
found = []
for fd in range(4096):
    try: os.fstat(fd)
    except OSError: continue
    found.append(fd)
print(found)
def f(): return found
"""


@pytest.mark.parametrize("count", [0, 10, 500])
def test_descriptors_of_the_parent_do_not_reach_the_program(count):
    """With many open, the pipes of the launcher have high numbers."""
    held = [os.open("/etc/hostname", os.O_RDONLY) for _ in range(count)]
    for fd in held:
        os.set_inheritable(fd, True)
    try:
        with Sandbox(DESCRIPTORS, PATIENT) as sandbox:
            streams_and_messages = [0, 1, 2, 3, 4]
            assert sandbox.run().stdout == f"{streams_and_messages}\n"
            assert sandbox.run(call="f").value == streams_and_messages
    finally:
        for fd in held:
            os.close(fd)


LOOK = """
import os
def read(path):
    with open(path, "rb") as file: return file.read(100)
def names(path): return os.listdir(path)
"""


def test_files_of_others_cannot_be_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    secret.chmod(0o644)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    stdlib = os.path.dirname(os.__file__)
    files = [secret, "/etc/passwd", "/etc/shadow", "/etc/hostname", "/proc/1/environ"]
    files += [f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/mem", "/proc/self/environ"]
    files += [Path.home() / ".ray" / "auth_token", __file__]
    files += [f"{stdlib}{'/..' * 12}{secret}", f"/proc/self/root{secret}"]
    with Sandbox(LOOK, PATIENT) as sandbox:
        assert sandbox.run(call="read", arguments=[os.__file__]).status == "ok"
        for file in files:
            result = sandbox.run(call="read", arguments=[str(file)])
            assert (result.status, result.value) == ("error", None), (file, result)
        for folder in ("/", "/tmp", str(Path.home()), str(tmp_path), "/proc"):
            result = sandbox.run(call="names", arguments=[folder])
            assert (result.status, result.value) == ("error", None), (folder, result)


def test_the_environment_has_no_secret(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t" * 40)
    with Sandbox("import os; print(sorted(os.environ))", PATIENT) as sandbox:
        found = set(eval(sandbox.run().stdout))
    assert found <= {"LANG", "LC_CTYPE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


def test_no_program_is_root():
    code = "import os; print(os.getuid(), os.geteuid(), os.getgid(), os.getgroups())\nos.setuid(0)"
    with Sandbox(code, PATIENT) as sandbox:
        result = sandbox.run()
        if os.geteuid() == 0:
            assert result.stdout == "65534 65534 65534 []\n"
        else:
            assert result.stdout.startswith(f"{os.geteuid()} {os.geteuid()} ")
        assert result.status == "error" and "PermissionError" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is root")
def test_a_sandbox_that_stays_root_says_so_and_is_refused():
    layers = [layer for layer in LAYERS if layer != "user"]
    with pytest.raises(SandboxUnavailable, match="from: privileges"):
        Sandbox("", PATIENT, layers=layers)
    others = [name for name in GUARANTEES if name != "privileges"]
    with Sandbox("import os; print(os.getuid())", PATIENT, layers=layers, require=others) as weak:
        assert weak.run().stdout == "0\n"
        assert "privileges" in weak.enforced.missing


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_what_a_task_requires_decides_whether_it_runs(guarantee):
    with Sandbox("", PATIENT, layers=(), require=()) as nothing:
        missing = nothing.enforced.missing
    if guarantee not in missing:
        pytest.skip(f"{guarantee}: this machine's user gives it without any layer")
    with pytest.raises(SandboxUnavailable, match=f"nothing keeps a program from: {guarantee}"):
        Sandbox("", PATIENT, layers=(), require=(guarantee,))


def test_programs_find_the_interpreter_and_its_packages():
    code = (
        "import decimal, sqlite3, zoneinfo, numpy; print(numpy.ones(3).sum(), decimal.Decimal(1))"
    )
    with Sandbox(code, PATIENT) as sandbox:
        assert sandbox.run().stdout == "3.0 1\n"


def test_the_launcher_holds_no_descriptor_of_others():
    """A program's process comes from the launcher: what that has, a fork might get."""
    program = (
        "import os, sys; sys.path.insert(0, os.getcwd())\n"
        "from rlinf.utils.sandbox.sandbox import Sandbox\n"
        "held = [os.open('/etc/hostname', os.O_RDONLY) for _ in range(100)]\n"
        "[os.set_inheritable(fd, True) for fd in held]\n"
        "with Sandbox('', require=()) as sandbox:\n"
        "    folder = f'/proc/{sandbox._keeper.pid}/fd'\n"
        "    print([os.readlink(f'{folder}/{fd}') for fd in os.listdir(folder)])\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "/etc/hostname" not in done.stdout
