"""Programs that do not solve the task: objects that lie, exits, patched modules."""

from __future__ import annotations

import pytest

from rlinf.algorithms.rewards.code import read_tests
from rlinf.utils.sandbox.judge import CheckRefused, Judge
from rlinf.utils.sandbox.sandbox import Sandbox
from tests.security.conftest import PATIENT

pytestmark = pytest.mark.usefixtures("enforced")

FRAMES = """
import os, struct, sys
def frame(text): return struct.pack("<Q", len(text)) + text
def tell(value=b"true"): os.write(4, frame(b'{"dict": [["value", ' + value + b"]]}"))
"""
ALWAYS = "__eq__ = __ge__ = __le__ = __contains__ = lambda *a: True; __hash__ = None"

OBJECTS = {
    "is unpickled": "class R:\n    __reduce__ = lambda s: (eval, ('2',))\ndef solve(x): return R()",
    "has every attribute": """
class Any:
    __getattr__ = lambda s, name: s
    __call__ = lambda s, *a, **k: s
    __eq__ = lambda *a: True
solve = Any()""",
    "is a generator": "def solve(x):\n    while True: yield True",
    "is a number that writes itself as another": """
class Two(int):
    __repr__ = __str__ = __format__ = lambda *a: "2"
    __pos__ = __int__ = __index__ = lambda s: 2
def solve(x): return Two(3)
print(Two(3).real)""",
    "is a float that writes itself as another": """
class Two(float):
    __repr__ = __str__ = lambda s: "2.0"
    __pos__ = __float__ = lambda s: 2.0
def solve(x): return Two(3)""",
    "says that it is a number": f"class Int:\n    __class__ = int; {ALWAYS}\n"
    "def solve(x): return Int()",
    "is an array that equals everything": f"class Array:\n    {ALWAYS}\n"
    "    tolist = lambda s: Array()\ndef solve(x): return Array()",
    "is not a number": "def solve(x): return float('nan')\nprint('nan')",
    "is a text of half a character": "def solve(x): return chr(0xD800)\nprint('\\x00\\ufeff')",
    "is an exception with a value": """
class Passed(Exception):
    value, verdict, __str__ = 2, "passed", lambda s: "2"
def solve(x):
    error = Passed(2); error.value = 2; error.__cause__ = Passed(2); raise error""",
    "is an exception by another name": "P = type('passed', (Exception,), {})\n"
    "def solve(x): raise P(2)",
    "is an exception that cannot be written": """
class Odd(Exception):
    def __str__(self): raise SystemExit(0)
def solve(x): raise Odd""",
    "is an exception group": "def solve(x): raise BaseExceptionGroup('', [SystemExit(0)])",
}
ENDS = {
    "prints more than it may": "print('2')\nprint('x' * (3 << 20))\ndef solve(x): return x",
    "ends in a signal handler": """
import os, signal
signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, 0.001)
def solve(x):
    while True: pass
solve(1)""",
    "is killed by itself": "import os\ndef solve(x): os.abort()\nsolve(1)",
    "overflows its stack": """
import sys
sys.setrecursionlimit(10**9)
one, other = [], []
for _ in range(10**5): one, other = [one], [other]
def solve(x): return one == other
solve(1)""",
    "answers at its exit": FRAMES + "import atexit\natexit.register(tell)\nsys.exit(0)",
    "answers when it is collected": FRAMES
    + """
import gc
class Last:
    def __del__(self): tell(); os._exit(0)
gc.callbacks.append(lambda *a: tell())
def solve(x):
    last = Last(); gc.collect(); del last
    return True""",
    "leaves threads that answer": FRAMES
    + """
import threading
def forever():
    while True: tell()
for _ in range(4): threading.Thread(target=forever, daemon=True).start()
def solve(x): return True""",
    "closes everything": "import os\nos.closerange(0, 64)\ndef solve(x): return True",
    "prints where it answers": "import os\nos.dup2(4, 1)\nprint('2')\ndef solve(x): return True",
    "lets every exit be a success": """
import os
leave = os._exit
os._exit = lambda code: leave(0)
def solve(x): raise MemoryError""",
    "answers everything itself": FRAMES
    + """
tell(b"0")
while True:
    size = os.read(3, 8)
    if not size: os._exit(0)
    os.read(3, struct.unpack("<Q", size)[0])
    tell()""",
}
PATCHES = {
    "traces its server": """
import sys, threading
def trace(frame, event, argument):
    for name in ("request", "answer", "reply"):
        if isinstance(frame.f_locals.get(name), dict):
            frame.f_locals[name].update(value=True, name="print", do="get")
    return trace
sys.settrace(trace); threading.settrace(trace); sys.setprofile(trace)
sys._getframe(1).f_trace = trace
def solve(x): return True""",
    "patches json": """
import json, json.encoder, json.decoder
json.dumps = lambda *a, **k: '{"dict": [["value", true]]}'
json.loads = lambda *a, **k: {"do": "function", "name": "solve", "arguments": []}
json.JSONEncoder.encode = lambda *a: "true"
def solve(*x): return True""",
    "patches its server": """
import sys
program = sys.modules["rlinf.utils.sandbox.program"]
program._Server._do = lambda *a: True
program._exit_code = lambda code: 0
sys.modules["rlinf.utils.sandbox.inside"].finish = lambda: None
def solve(x): return True""",
    "patches built-in functions": """
import builtins
for name in ("isinstance", "issubclass", "callable", "hasattr", "all", "any"):
    setattr(builtins, name, lambda *a: True)
builtins.exec = builtins.compile = builtins.eval = lambda *a, **k: True
builtins.__import__ = lambda *a, **k: builtins
def solve(x): return True""",
    "patches numbers themselves": """
import gc
gc.get_referents(int.__dict__)[0]["__eq__"] = lambda *a: True
gc.get_referents(int.__dict__)[0]["__repr__"] = lambda *a: "2"
def solve(x): return True""",
    "changes what it was told": """
import gc
for found in gc.get_objects():
    if isinstance(found, dict) and found.keys() & {"serve", "objects", "code", "layers"}:
        try: found.update(serve=False, objects=True, checks=True)
        except Exception: pass
def solve(x): return True""",
}
TESTS = {
    "assertion": "assert solve(1) == 2",
    "value": {"fn_name": "solve", "inputs": [[1]], "outputs": [2]},
    "output": {"inputs": ["1"], "outputs": ["2"]},
}


@pytest.fixture(scope="module")
def judge():
    judge = Judge(PATIENT)
    yield judge
    judge.close()


def passed(judge, sandbox, test) -> bool:
    if test.check is None:
        result = sandbox.run(test.stdin, call=test.call, arguments=test.arguments)
        return test.passed(result)
    try:
        return test.passed(judge.run(sandbox, test.check))
    except CheckRefused:
        return False


FORGERIES = OBJECTS | ENDS | PATCHES


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_program_passes_by_a_forgery(judge, forgery):
    with Sandbox(FORGERIES[forgery], PATIENT) as sandbox:
        for name, answer in TESTS.items():
            (test,) = read_tests(answer)
            assert not passed(judge, sandbox, test), name
        assert sandbox._keeper.waits


def test_the_right_program_passes_after_all_of_them(judge):
    right = "def solve(x): return 2 * x\nif __name__ == '__main__':\n    print(2)"
    with Sandbox(right, PATIENT) as sandbox:
        for answer in TESTS.values():
            (test,) = read_tests(answer)
            assert passed(judge, sandbox, test)


THREE = "def solve(x): return 3\n"
LIES = {
    "is never called": ("solve = 5", "def test():\n    assert solve(1) == 2"),
    "is called by nobody's main": (
        "solve = 5",
        "def test():\n    assert solve(1) == 2\nif __name__ == '__main__':\n    test()",
    ),
    "is not there": (
        "pass",
        "try:\n    solve\nexcept NameError:\n    pass\nelse:\n    assert solve(1) == 2",
    ),
    "brings a package": (
        THREE + "class np:\n    allclose = staticmethod(lambda *a: True)",
        "assert np.allclose(solve(1), 2)",
    ),
    "brings a module": (
        THREE + "class math:\n    isclose = staticmethod(lambda *a: True)",
        "assert math.isclose(solve(1), 2)",
    ),
    "brings what compares": (
        THREE + "isclose = lambda *a: True",
        "assert isclose(solve(1), 2)",
    ),
    "brings what both sides are made of": (
        THREE + "Counter = lambda *a: 7",
        "assert Counter(solve(1)) == Counter([2])",
    ),
    "has a length and no items": (
        "class Lie:\n    __len__ = lambda s: 2\n    __iter__ = lambda s: iter(())\n"
        "def solve(x): return Lie()",
        "found = solve(1)\nassert len(found) == 2\nfor a, b in zip(found, [1, 2]):\n"
        "    assert a == b",
    ),
    "has items only for those who count": (
        "count = [0]\nclass Lie:\n    def __len__(self): return len(list(self))\n"
        "    def __iter__(self):\n        count[0] += 1\n"
        "        return iter([7, 7] if count[0] < 3 else [])\n"
        "def solve(x): return Lie()",
        "found = solve(1)\nassert len(found) == 2\nfor a, b in zip(found, [1, 2]):\n"
        "    assert a == b",
    ),
    "has a length after its items": (
        "seen = []\nclass Lie:\n    def __iter__(self): seen.append(1); return iter(())\n"
        "    def __len__(self):\n        if not seen: raise TypeError\n        return 2\n"
        "def solve(x): return Lie()",
        "found = solve(1)\nfor a, b in zip(found, [1, 2]):\n    assert a == b\n"
        "assert len(found) == 2",
    ),
    "has other items backwards": (
        "class Lie:\n    __len__ = lambda s: 2\n    __iter__ = lambda s: iter([7, 7])\n"
        "    def __getitem__(self, key): raise IndexError\ndef solve(x): return Lie()",
        "for a, b in zip(reversed(solve(1)), [1, 2]):\n    assert a == b",
    ),
    "equals in a list": (
        f"class Equal:\n    {ALWAYS}\ndef solve(x): return [Equal()]",
        "assert solve(1) == [2] or 2 in solve(1)",
    ),
    "equals in a dict": (
        f"class Equal:\n    {ALWAYS}\ndef solve(x): return {{'a': Equal()}}",
        "assert solve(1) == {'a': 2}",
    ),
    "sorts as it likes": (
        f"class Equal:\n    {ALWAYS}; __lt__ = lambda *a: True\ndef solve(x): return [Equal()] * 2",
        "assert sorted(solve(1)) == [1, 2]",
    ),
    "is an exception of another type": (
        "class E(Exception): pass\nE.__name__ = E.__qualname__ = 'ValueError_'\n"
        "def solve(x): raise E",
        "import pytest\nwith pytest.raises(ValueError):\n    solve(1)",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_program_deceives_a_check(judge, lie):
    code, check = LIES[lie]
    with Sandbox(code, PATIENT) as sandbox:
        (test,) = read_tests(check)
        assert not passed(judge, sandbox, test)


HONEST = """
class Chain:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, key): return self.items[key]
def count(n): yield from range(n)
def solve(x): return 2 * x
LIMIT = 5
"""


@pytest.mark.parametrize(
    "check",
    [
        "c = Chain()\nc.push(1)\nassert len(c) == 1\nc.push(2)\nassert len(c) == 2 == c[1]\n"
        "assert list(c) == [1, 2] and list(reversed(c)) == [2, 1] and 2 in c",
        "g = count(2)\nassert list(g) == [0, 1] and list(g) == []",
        "assert LIMIT == 5",
        "class Test:\n    expected = solve(1)\nassert Test.expected == 2",
        "assert np.allclose([solve(1)], [2.0])",
        "from math import isclose\nassert isclose(solve(1), 2)",
        "from collections import *\nassert Counter([solve(1)]) == Counter([2])",
    ],
)
def test_honest_programs_pass_such_checks(judge, check):
    with Sandbox(HONEST, PATIENT) as sandbox:
        assert judge.run(sandbox, check).value
