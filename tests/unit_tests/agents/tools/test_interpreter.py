"""The interpreter: names and files stay for an episode, limits hold, and nothing gets out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from pathlib import Path

import pytest

from rlinf.agents.tools import interpreter
from rlinf.agents.tools.tool import ToolError, ToolFailed, tool_registry
from rlinf.agents.tools.toolbox import Toolbox, ToolCall
from rlinf.utils.processes.lifetime import descendants
from rlinf.utils.processes.open_files import allow_open_files
from rlinf.utils.sandbox.sandbox import SandboxUnavailable

PythonInterpreter = tool_registry.lookup("python").function


@pytest.fixture
def opened():
    """Opens sessions, and closes them."""
    made = []

    def open_one(**options):
        try:
            made.append(PythonInterpreter(**{"memory_mb": 200, **options}))
        except SandboxUnavailable as error:
            pytest.skip(f"this machine cannot confine programs: {error}")
        return made[-1]

    yield open_one
    for each in made:
        each.close()


def error_of(session, code):
    with pytest.raises(ToolError) as told:
        session(code)
    return str(told.value)


def test_names_values_and_files_stay(opened):
    session = opened()
    assert session("x = [3, 1, 2]") == ""
    assert session("print('sorted')\nsorted(x)") == "sorted\n[1, 2, 3]"
    assert session("with open('data/a.txt', 'w') as f:\n  f.write('one\\ntwo')") == ""
    assert session("open('data/a.txt').readlines()") == "['one\\n', 'two']"
    assert session("with open('data/a.txt', 'a') as f: f.write('!')") == ""
    assert session("import os, pathlib; print(os.listdir()); pathlib.Path('b').write_bytes(b'x')")
    assert session("open('data/a.txt').read(), open('b', 'rb').read()") == "('one\\ntwo!', b'x')"
    assert "FileNotFoundError" in error_of(session, "open('c')")
    # Another session has its own.
    assert "NameError: name 'x' is not defined" in error_of(opened(), "x")


def test_errors_are_told_in_a_line(opened):
    session = opened()
    assert error_of(session, "1 / 0") == "ZeroDivisionError: division by zero"
    assert error_of(session, "a = 1\na.b") == (
        "AttributeError: 'int' object has no attribute 'b' (line 2)"
    )
    assert error_of(session, "print('so far')\n(") == "SyntaxError: '(' was never closed (line 2)"
    assert error_of(session, "print('so far')\nint('x')").startswith("so far\n\nValueError")
    assert error_of(session, "raise SystemExit(3)") == "SystemExit: 3"
    # The session goes on.
    assert session("a") == "1"


def test_limits_cost_the_session_and_the_next_call_begins_another(opened):
    # Long enough for what ends by itself, on a busy machine too.
    session = opened(seconds=3, max_characters=50)
    session("x = 1")
    said = error_of(session, "while True: pass")
    assert said == "the code did not end within 3 s; names and files of before are gone"
    assert "NameError" in error_of(session, "x")
    assert session("print('y' * 1000)") == "y" * 50 + "... (more was printed)"
    assert error_of(session, "z = 'z' * (1 << 30)") == "MemoryError"
    # What goes past `print` is bounded, too.
    flood = "import os\nwhile True: os.write(1, b'x' * 65536)"
    assert "wrote more than 1048576 bytes" in error_of(session, flood)
    assert "ended the interpreter" in error_of(session, "import os; os._exit(0)")
    forged = "import os, struct\nos.write(4, struct.pack('<Q', 2) + b'[]')"
    assert "ended the interpreter" in error_of(session, forged)
    assert session("1 + 1") == "2"


@pytest.mark.parametrize(
    "attack",
    [
        "open('/etc/passwd').read()",
        "import io; io.FileIO('{folder}/new', 'w')",
        "import os; os.open('{folder}/new', os.O_CREAT | os.O_WRONLY)",
        "import os; os.kill({pid}, 9)",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import socket; socket.create_connection(('127.0.0.1', 22))",
        "open('/proc/{pid}/environ', 'rb').read()",
    ],
)
def test_nothing_gets_out(opened, attack, tmp_path):
    said = error_of(opened(), attack.format(folder=tmp_path, pid=os.getpid()))
    assert "Error" in said and not list(Path(tmp_path).iterdir())


def test_sessions_are_forks_of_one_warm_parent_and_leave_nothing_behind(opened):
    opened()
    parent = interpreter.warm_parent()
    own = parent._process.pid
    before = descendants(own)
    session = opened()
    session(
        "import threading; threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()"
    )
    assert len(descendants(own) - before) >= 2
    session.close()
    assert interpreter.warm_parent() is parent
    while descendants(own) - before:
        pass


def test_sessions_go_on_where_a_process_has_many_files_open(opened):
    assert allow_open_files(2000) >= 2000, "raise the limit of open files: ulimit -n"
    with contextlib.ExitStack() as held:
        while held.enter_context(Path("/dev/null").open()).fileno() < 1024:
            pass
        session = opened()
        assert session("1 + 1") == "2" and session("2 + 2") == "4"
        assert "did not end within" in error_of(opened(seconds=0.3), "while True: pass")
        session.close()


def test_a_process_without_files_left_says_so(opened, monkeypatch):
    opened()

    def none_left():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", none_left)
    with pytest.raises(SandboxUnavailable, match="this process may have .*ulimit -Hn"):
        PythonInterpreter(memory_mb=200)


async def test_a_warm_parent_that_dies_costs_its_sessions(opened):
    opened()
    box = Toolbox(["python"], settings={"python": {"options": {"memory_mb": 200}}})
    box.prepare()
    session = box.session()
    assert (await session.call(ToolCall("python", {"code": "x = 2; x"}))).text == "2"
    process = interpreter.warm_parent()._process
    os.kill(process.pid, signal.SIGKILL)
    while process.poll() is None:
        await asyncio.sleep(0.01)
    with pytest.raises(ToolFailed, match="the sandbox failed"):
        await session.call(ToolCall("python", {"code": "x"}))
    await session.close()
    fresh = box.session()
    assert (await fresh.call(ToolCall("python", {"code": "3"}))).text == "3"
    await fresh.close()


async def test_sessions_of_many_episodes_at_once(opened):
    opened()
    box = Toolbox(["python"])

    async def episode(number: int) -> str:
        session = box.session()
        try:
            await session.call(ToolCall("python", {"code": f"n = {number}"}))
            return (await session.call(ToolCall("python", {"code": "n * n"}))).text
        finally:
            await session.close()

    found = await asyncio.gather(*map(episode, range(40)))
    assert found == [str(n * n) for n in range(40)]
