"""Programs that attack: each layer of the sandbox holds alone, and nothing survives."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlinf.utils.processes.lifetime import descendants
from rlinf.utils.sandbox.confine import LAYERS
from rlinf.utils.sandbox.sandbox import Limits, Sandbox, SandboxUnavailable

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="programs are confined on Linux only",
)

ROOT = Path(__file__).resolve().parents[4]
QUICK = Limits(seconds=1.0, memory_mb=256, output_bytes=1 << 16)
PATIENT = replace(QUICK, seconds=30.0)
"""For programs that end by themselves, if only when the machine has time for them."""
WITHOUT_NAMESPACES = ("user", "landlock", "seccomp")
FILTER_ALONE = ("seccomp",)
FIRST_FOUR = ("network", "processes", "signals", "files")
"""What the filter of system calls guarantees alone."""

FORBIDDEN = {
    "socket": "import socket; socket.socket()",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "fork": "import os; os.fork()",
    "fork bomb": "import os\nwhile True: os.fork()",
    "subprocess": "import subprocess; subprocess.run(['true'])",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "kills its parent": "import os; os.kill(os.getppid(), 9)",
    "kills everybody": "import os; os.kill(-1, 9)",
    "writes a file": "open({path!r}, 'w').write('x')",
    "appends to a file": "open({path!r}, 'a').write('x')",
    "makes a file": "open({path!r} + '2', 'w').write('x' * 10**9)",
    "removes a file": "import os; os.unlink({path!r})",
    "renames a file": "import os; os.rename({path!r}, {path!r} + '2')",
    "makes a folder": "import os; os.mkdir({path!r} + '2')",
    "changes a file": "import os; os.chmod({path!r}, 0)",
    "reads another process": "import os; open(f'/proc/{{os.getppid()}}/mem', 'r+b')",
    "lifts its limits": "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))",
    "limits others": "import os, resource as r; r.prlimit(os.getppid(), r.RLIMIT_CPU, (1, 1))",
    "shared memory": "from multiprocessing import shared_memory as s; "
    "s.SharedMemory(create=True, size=1 << 30)",
    "fills memory that is no file": "import os; fd = os.memfd_create('x'); "
    "os.write(fd, b'x' * 1000)",
}

STOPPED = {
    "infinite loop": ("while True: pass", "timeout"),
    "ignores signals": (
        "import signal, time\n"
        "for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "time.sleep(60)",
        "timeout",
    ),
    "asks for memory": ("x = bytearray(10**10)", "memory"),
    "hogs memory": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory"),
    "prints forever": ("while True: print('x' * 1000)", "output"),
    "complains forever": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "error"),
    "fails": ("raise SystemExit(3)", "error"),
    "threads forever": (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "error",
    ),
}


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "kept"
    path.write_text("mine")
    path.chmod(0o666)
    tmp_path.chmod(0o777)
    yield path
    assert path.read_text() == "mine" and os.listdir(tmp_path) == ["kept"]
    assert path.stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("layers", [LAYERS, WITHOUT_NAMESPACES, FILTER_ALONE], ids="+".join)
def test_what_is_forbidden_is_refused(kept, layers):
    for name, code in FORBIDDEN.items():
        code = code.format(path=str(kept))
        with Sandbox(code, PATIENT, layers=layers, require=FIRST_FOUR) as sandbox:
            for _ in range(2):
                result = sandbox.run()
                assert result.status == "error", (name, result)
                assert "Error" in result.stderr, (name, result)


@pytest.mark.parametrize("attack", STOPPED)
def test_what_does_not_end_is_ended(attack):
    code, status = STOPPED[attack]
    limits = QUICK if status == "timeout" else PATIENT
    with Sandbox(code, limits) as sandbox:
        before = descendants(sandbox._keeper.pid)
        result = sandbox.run()
        assert result.status == status, result
        assert len(result.stdout) <= QUICK.output_bytes + (1 << 16)
        assert descendants(sandbox._keeper.pid) == before


SURVIVORS = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
"""


@pytest.mark.parametrize("layers", [("namespaces",), ()], ids=["namespaces", "none"])
def test_survivors_of_double_forks_are_killed(layers):
    with Sandbox(SURVIVORS, PATIENT, layers=layers, require=()) as sandbox:
        before = descendants(sandbox._keeper.pid)
        assert sandbox.run().status == "ok"
        assert descendants(sandbox._keeper.pid) == before
        family = {sandbox._keeper.pid, *before}
    # They were killed; the kernel ends them when it comes to it.
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in family):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_programs_do_what_programs_do():
    code = "import sys, threading\nprint(input()[::-1], file=sys.stdout)\n"
    code += "threading.Thread(target=lambda: print('from a thread')).start()\n"
    with Sandbox(code, PATIENT) as sandbox:
        for text in ("abc", "xyz"):
            result = sandbox.run(text)
            assert (result.status, result.stdout) == ("ok", f"{text[::-1]}\nfrom a thread\n")
        assert sandbox.run().status == "error"
        assert "EOFError" in sandbox.run().stderr


def test_functions_can_be_called():
    code = "class Solution:\n    def add(self, a, b): return a + b\ndef pair(a): return a, {1: a}\n"
    with Sandbox(code, PATIENT) as sandbox:
        assert sandbox.run(call="add", arguments=[1, 2]).value == 3
        assert sandbox.run(call="pair", arguments=["x"]).value == ("x", {1: "x"})
        assert sandbox.run(call="pair", arguments=[{(1, 2): {3}}]).value[0] == {(1, 2): {3}}
        assert sandbox.run(call="none").status == "error"
        assert "KeyError" in sandbox.run(call="none").stderr
        assert sandbox.run(call="Solution").status == "error"


def test_large_arguments_and_values_pass():
    with Sandbox("def f(x): return x[::-1]", replace(PATIENT, output_bytes=1 << 20)) as sandbox:
        numbers = list(range(100_000))
        assert sandbox.run(call="f", arguments=[numbers]).value == numbers[::-1]


def test_a_program_can_read_its_folder_and_nothing_beside_it(tmp_path):
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text(name)
    # Tests of root run programs as nobody.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    code = "print(open('text').read())\nopen('../other/text')"
    with Sandbox(code, PATIENT, folder=str(tmp_path / "own")) as sandbox:
        result = sandbox.run()
        assert (result.stdout, result.status) == ("own\n", "error")
        assert "PermissionError" in result.stderr


def test_starting_does_not_take_the_time_of_the_program():
    """A busy machine may need longer to start a sandbox than a program is given."""
    with Sandbox("print(1)", Limits(seconds=1e-9)) as sandbox:
        assert sandbox.enforced.by["network"]
        assert sandbox.run().status == "timeout"


def test_what_is_not_enforced_is_said_and_refused():
    with pytest.raises(SandboxUnavailable, match="nothing keeps a program from: network, proc"):
        Sandbox("", layers=("landlock",))
    with Sandbox("print(1)", PATIENT, layers=(), require=()) as sandbox:
        assert set(sandbox.enforced.missing) >= {*FIRST_FOUR, "reading"}
        assert "NOT enforced: no network" in str(sandbox.enforced)
        assert sandbox.run().stdout == "1\n"
    with Sandbox("", layers=FILTER_ALONE, require=FIRST_FOUR) as sandbox:
        assert all(sandbox.enforced.by[name] == ["seccomp"] for name in FIRST_FOUR)
    with pytest.raises(SandboxUnavailable, match="reading"):
        Sandbox("", layers=FILTER_ALONE)


PROBE = """
import os, sys
sys.path.insert(0, {root!r})
if {drop}:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
from rlinf.utils.sandbox.sandbox import Limits, Sandbox
code = "import os; print(os.getuid()); os.kill(os.getppid(), 9)"
with Sandbox(code, Limits(seconds=30), layers={layers}, require=()) as sandbox:
    before = sandbox.run()
    print(sandbox.enforced.by.get("signals"), sandbox.enforced.by.get("privileges"))
    print(before.stdout.strip(), before.status)
with Sandbox({survivors!r}, Limits(seconds=30), layers={layers}, require=()) as sandbox:
    print(sandbox.run().status, sandbox.enforced.by.get("processes"))
"""


@pytest.mark.parametrize("drop", [True, False], ids=["as a user", "as root"])
def test_other_users(drop):
    """Root becomes nobody for a program; users have namespaces of users."""
    python = "/usr/bin/python3"
    if os.geteuid() != 0 or not os.access(python, os.X_OK) or not _readable(ROOT):
        pytest.skip("needs root, a Python that everybody can read, and such a source tree")
    layers = ("namespaces",) if drop else ("user",)
    program = PROBE.format(root=str(ROOT), drop=drop, layers=layers, survivors=SURVIVORS)
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, cwd="/", timeout=110
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if drop and lines[0].startswith("None"):
        pytest.skip("users may not have namespaces here")
    # Process 1 of a namespace does not even notice; nobody may not kill root.
    assert lines[1] == ("65534 ok" if drop else "65534 error")
    assert lines[0] == ("['namespaces'] ['user']" if drop else "None ['user']")
    assert lines[2] == "ok None", "it starts processes, and nothing says that it cannot"


def _readable(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


LINKED = """
import importlib.util, sys
root = sys.argv[1]
spec = importlib.util.spec_from_file_location(
    "rlinf", f"{root}/rlinf/__init__.py", submodule_search_locations=[f"{root}/rlinf"]
)
sys.modules["rlinf"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["rlinf"])
assert root not in sys.path
from rlinf.utils.sandbox.sandbox import Sandbox
with Sandbox("print(3)", require=()) as sandbox:
    print(sandbox.run().stdout)
"""


def test_a_package_that_is_linked_to_its_sources_is_found(tmp_path):
    """`pip install -e` may leave a hook in the place of an entry of `sys.path`."""
    root = str(Path(__file__).resolve().parents[4])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", LINKED, root],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "3", done.stderr
