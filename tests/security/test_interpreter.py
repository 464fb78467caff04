"""The interpreter of agents: what a session must not see of the run, and of other sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rlinf.agents.tools.tool import ToolError, tool_registry

pytestmark = pytest.mark.usefixtures("enforced")

PythonInterpreter = tool_registry.lookup("python").function

DESCRIPTORS = """
import os
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
[fd for fd in range(256) if is_open(fd)]
"""
MEMORY = """
import gc
[each for each in gc.get_objects() if isinstance(each, dict) and 'SECRET_OF_A' in each.values()]
"""
TEXTS = """
found = open('/proc/self/mem', 'rb').read(1)
"""


@pytest.fixture
def sessions() -> Iterator[list]:
    made = [PythonInterpreter(seconds=10.0) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def test_the_environment_of_the_run_is_not_there(sessions, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    with_key = PythonInterpreter(seconds=10.0)
    try:
        assert "secret" not in with_key("import os; dict(os.environ)")
    finally:
        with_key.close()


def test_descriptors_are_those_of_the_session(sessions):
    # Standard streams, requests and replies.
    assert sessions[0](DESCRIPTORS) == "[0, 1, 2, 3, 4]"


def test_sessions_do_not_see_each_other(sessions):
    one, other = sessions
    one("a = 'SECRET_OF_A'; open('note', 'w').write(a)")
    with pytest.raises(ToolError, match="NameError"):
        other("a")
    with pytest.raises(ToolError, match="FileNotFoundError"):
        other("open('note').read()")
    assert other(MEMORY) == "[]"
    for attack in (TEXTS, "import os; os.listdir('/proc')", "import os; os.kill(-1, 9)"):
        with pytest.raises(ToolError, match="Error"):
            other(attack)
    assert one("a") == "'SECRET_OF_A'"


def test_what_replaces_open_opens_nothing_more(sessions, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("secret")
    way = os.path.relpath(outside, "/")
    for path in (str(outside), way, f"../{way}"):
        with pytest.raises(ToolError, match="Error"):
            sessions[0](f"open({path!r}).read()")
        with pytest.raises(ToolError, match="Error"):
            sessions[0](f"import io; io.FileIO({path!r}, 'w')")
    sessions[0](f"open({way!r}, 'w').write('changed')")
    assert outside.read_text() == "secret"
