"""Programs that do not solve the task and want to be told that they do."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from rlinf.algorithms.rewards.code import CodeReward
from rlinf.utils.sandbox.judge import CheckRefused, Judge
from rlinf.utils.sandbox.sandbox import Sandbox
from tests.security.conftest import PATIENT

pytestmark = pytest.mark.usefixtures("enforced")

FRAMES = """
import os, struct
def frame(text): return struct.pack("<Q", len(text)) + text
def write(data):
    for fd in range(3, 64):
        try: os.write(fd, data)
        except OSError: pass
"""
VALUE = b'{"dict": [["value", true]]}'
VERDICT = b'{"dict": [["verdict", "passed"], ["why", ""]]}'

FORGERIES = {
    "writes the old answer to descriptor 3": """
import os
try: os.write(3, b'{"value": true}')
except OSError: os.write(4, b'{"value": true}')
os._exit(0)""",
    "writes to every descriptor": FRAMES + "write(b'{\"value\": true}')\nos._exit(0)",
    "writes framed values": FRAMES + f"write(frame({VALUE!r}) * 9)\nos._exit(0)",
    "writes framed values and stays": FRAMES + f"write(frame({VALUE!r}) * 9)\nsolve = len",
    "writes framed verdicts": FRAMES + f"write(frame({VERDICT!r}) * 9)\nos._exit(0)",
    "answers a call with a verdict": FRAMES + f"def solve(x): write(frame({VERDICT!r}) * 9)\n",
    "writes a result of the launcher": FRAMES
    + 'write(frame(b\'r\' + b\'{"status": "ok", "value": true}\') * 9)\nos._exit(0)',
    "leaves with the code of a failed set-up": """
import os
for fd in range(3, 64):
    try: os.write(fd, b'{"status": "ok", "value": true, "setup": null}')
    except OSError: pass
os._exit(120)""",
    "rewrites the question in the frames above": """
import sys
frame = sys._getframe(0)
while frame:
    for space in (frame.f_locals, frame.f_globals):
        for name in ("question", "request", "check", "settings"):
            if isinstance(space.get(name), dict):
                space[name].update(check="pass", call=None, probe=True, do="get", name="two")
    frame = frame.f_back
two = 2
def solve(x): raise SystemExit(0)""",
    "equals everything": """
class Equal(int):
    __eq__ = __ge__ = __le__ = lambda *a: True
    __ne__ = lambda *a: False
    __hash__ = int.__hash__
def solve(x): return Equal(7)""",
    "is an object that equals everything": """
class Equal:
    __eq__ = lambda *a: True
def solve(x): return Equal()""",
    "changes the built-ins": """
import builtins
builtins.AssertionError = type("Fine", (BaseException,), {})
builtins.print = builtins.len = builtins.bool = lambda *a: True
solve = lambda x: None""",
    "leaves with success before the check": "import sys; sys.exit(0)",
    "leaves with success in the call": "import os\ndef solve(x): os._exit(0)",
    "raises what ends the judge": "def solve(x): raise SystemExit(0)",
    "raises something of its own": "class Pass(BaseException): pass\ndef solve(x): raise Pass",
    "finds the expected value": """
import gc, sys
found = [o for o in gc.get_objects() if isinstance(o, dict) and ("expected" in o or "check" in o)]
frame = sys._getframe(0)
while frame:
    found.append(dict(frame.f_locals)); frame = frame.f_back
texts = repr(found)
def solve(x): return 2 if "solve(1) ==" + " 2" in texts else 3""",
    "nests its answer": FRAMES + "def solve(x): write(frame(b'[' * 500_000)); os._exit(0)",
    "announces a message without end": FRAMES
    + "def solve(x): write(struct.pack('<Q', 1 << 62) + b'x' * 1000); os._exit(0)",
    "returns a nest": """
def solve(x):
    nest = []
    for _ in range(10**5): nest = [nest]
    return nest""",
    "patches what encodes": """
import sys
values = sys.modules["rlinf.utils.sandbox.values"]
values.encode = lambda *a, **k: b'{"dict": [["value", {"object": 0}]]}'
class Equal:
    __eq__ = lambda *a: True
def solve(x): return Equal()""",
}

TESTS = {
    "assertion": ["assert solve(1) == 2"],
    "two assertions": {"tests": "assert solve(1) == 2\nassert solve(2) == 4"},
    "assertion in a function": "def check(solution):\n    assert solution(1) == 2\ncheck(solve)",
    "value": {"fn_name": "solve", "inputs": [[1]], "outputs": [2]},
    "output": {"inputs": ["1"], "outputs": ["2"]},
}


@pytest.fixture(scope="module")
def reward():
    settings = {
        "timeout": 100.0,
        "test_timeout": 30.0,
        "memory_limit_mb": 512,
        "max_tests": None,
        "partial_credit": True,
        "allow_weak_sandbox": False,
    }
    return CodeReward(SimpleNamespace(**settings))


def score(reward, code: str, answer) -> float:
    try:
        return reward.score(f"```python\n{code}\n```", answer)[0]
    except CheckRefused:
        # The worker gives 0 to what cannot be judged, and counts it.
        return 0.0


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_program_gets_a_reward_for_a_forgery(reward, forgery):
    scores = {name: score(reward, FORGERIES[forgery], answer) for name, answer in TESTS.items()}
    assert set(scores.values()) == {0.0}, scores


def test_the_right_program_gets_its_reward_after_all_of_them(reward):
    right = "def solve(x): return 2 * x\nif __name__ == '__main__':\n    print(2)"
    for answer in TESTS.values():
        assert score(reward, right, answer) == 1.0


@pytest.mark.parametrize("answer", TESTS.values(), ids=TESTS)
def test_no_program_prints_what_it_reads_in_the_data(reward, tmp_path, answer):
    data = tmp_path / "train.jsonl"
    data.write_text(json.dumps({"question": "double", "answer": 2}))
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    code = (
        f"import json\nanswer = json.loads(open({str(data)!r}).read())['answer']\n"
        "print(answer)\ndef solve(x): return answer * x"
    )
    assert score(reward, code, answer) == 0.0


MEMORY = """
import re
SECRET = re.compile(b"[8]67530[9]")
def solve(text=""):
    hits = 0
    memory = open("/proc/self/mem", "rb", buffering=0)
    for line in open("/proc/self/maps").readlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if line.split()[1].startswith("r") and "[v" not in line:
            memory.seek(begin)
            while begin < end and (part := memory.read(min(1 << 20, end - begin))):
                hits += len(SECRET.findall(part))
                begin += len(part)
    return hits
"""


def test_a_check_is_nowhere_in_the_memory_of_the_program():
    """Reading is allowed here, so that the program can look at all of its memory."""
    judge = Judge(PATIENT)
    with Sandbox(MEMORY, PATIENT, layers=("namespaces", "seccomp"), require=()) as sandbox:
        # It can look: what it is given is there.
        assert sandbox.run(call="solve", arguments=["8675309"]).value >= 1
    with Sandbox(MEMORY, PATIENT, layers=("namespaces", "seccomp"), require=()) as sandbox:
        for _ in range(2):
            assert judge.run(sandbox, "assert solve() == 8675309 - 8675309").value
    judge.close()


def test_a_launcher_outlives_every_forgery():
    judge = Judge(PATIENT)
    for code in FORGERIES.values():
        with Sandbox(code, PATIENT) as sandbox:
            pid = sandbox._keeper.pid
            sandbox.run()
            sandbox.run(call="solve", arguments=[1])
            try:
                judge.run(sandbox, "assert solve(1) == 2")
            except CheckRefused:
                pass
            assert sandbox.run().status in ("ok", "error")
            assert sandbox._keeper.pid == pid and sandbox._keeper.waits
    judge.close()
