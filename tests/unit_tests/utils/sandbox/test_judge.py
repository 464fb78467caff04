"""Checks of a program's functions: what they can do, what is refused, and what ends them."""

from __future__ import annotations

import sys

import pytest

from rlinf.utils.sandbox.check_names import foreign_names
from rlinf.utils.sandbox.judge import CheckRefused, Judge
from rlinf.utils.sandbox.sandbox import Limits, Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs run on Linux only")

PATIENT = Limits(seconds=30.0, memory_mb=256, output_bytes=1 << 16)

PROGRAM = """
import math
TABLE = {1: (2, {3})}
def pair(a, b=0): return a, b
def count(n): yield from range(n)
def fail(kind): raise kind_of(kind)("said")
class Own(Exception): pass
def kind_of(name): return {"value": ValueError, "import": ImportError, "own": Own}[name]
class Stack:
    def __init__(self, *items): self.items, self.name = list(items), "stack"
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __getitem__(self, place): return self.items[place]
    def __str__(self): return f"Stack{self.items}"
    def __eq__(self, other): return True
def size(stack): return len(stack)
def sort_in_place(items): items.sort()
def isclose(a, b): return True
def forever():
    while True: pass
def leave(): raise SystemExit(0)
"""

PASS = [
    "assert pair(1) == (1, 0) and pair(1, b=[2]) == (1, [2])",
    "def check(f):\n    for n in range(3):\n        assert f(n)[0] == n\ncheck(pair)",
    "assert TABLE[1] == (2, {3})",
    "assert list(count(3)) == [0, 1, 2] and 2 in count(3) and 3 not in count(3)",
    "assert sorted(count(3), reverse=True) == [2, 1, 0]",
    "s = Stack(1).push(2).push(3)\nassert (s.pop(), len(s), s[0]) == (3, 2, 1)",
    "assert str(Stack(1)) == 'Stack[1]'",
    "s = Stack()\ns.name = 'other'\nassert s.name == 'other' and size(s) == 0",
    "try:\n    fail('value')\nexcept ValueError as error:\n    assert str(error) == 'said'\n"
    "else:\n    assert False",
    "try:\n    fail('own')\nexcept Exception as error:\n    assert 'Own' in str(error)",
    "import math\nassert math.isclose(pair(0.1 + 0.2)[0], 0.3)",
    "assert math.isclose(pair(0.1 + 0.2)[0], 0.3)",
    "print('x' * 10**6)\nassert pair(1)",
]
FAIL = [
    "assert pair(1) == (1, 1)",
    "assert nothing(1) == 1",
    "assert pair(1) == [1, 0]",
    "fail('value')",
    "fail('import')",
    "items = [2, 1]\nsort_in_place(items)\nassert items == [1, 2]",
    "raise SystemExit(0) if pair(1) else None",
    "assert math.isclose(pair(1)[0], 2)",
]
REFUSED = {
    "assert True": "uses no name of the program",
    "assert len([1]) == 1": "uses no name of the program",
    "def test_pair():\n    assert pair(1) == 5": "never asks the program",
    "assert Stack(1) == Stack(2)": "__eq__",
    "assert Stack(1)": "__bool__",
    "try:\n    assert Stack(1) == 2\nexcept BaseException:\n    pass": "__eq__",
    "assert pair(lambda: 1)": "function",
    "assert (pair": "not Python",
    "from solution import pair\nassert pair(1) and Stack": "No module named 'solution'",
}


@pytest.fixture(scope="module")
def judge():
    judge = Judge(PATIENT)
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def program():
    with Sandbox(PROGRAM, PATIENT) as program:
        yield program


@pytest.mark.parametrize(("checks", "passes"), [(PASS, True), (FAIL, False)], ids=["pass", "fail"])
def test_checks_are_judged_as_python_would(judge, program, checks, passes):
    for check in checks:
        assert judge.run(program, check).value is passes, check


@pytest.mark.parametrize("check", REFUSED, ids=REFUSED.values())
def test_what_cannot_be_judged_is_refused_by_name(judge, program, check):
    with pytest.raises(CheckRefused, match=REFUSED[check]):
        judge.run(program, check)


def test_a_program_that_ends_or_hangs_fails_its_check(judge, program):
    caught = "try:\n    {}()\nexcept BaseException:\n    pass\nassert pair(1)"
    assert judge.run(program, caught.format("leave")).value is False
    result = judge.run(program, caught.format("forever"), seconds=1.0)
    assert (result.status, result.value) == ("timeout", False)
    result = judge.run(program, "assert pair(1)\nwhile True: pass", seconds=1.0)
    assert (result.status, result.value) == ("timeout", False)
    assert judge.run(program, PASS[0]).value is True


def test_programs_that_do_not_run_fail(judge):
    for code in ("def f(:", "raise ValueError", "import sys; sys.exit(0)", "f = 1"):
        with Sandbox(code, PATIENT) as program:
            assert judge.run(program, "assert f(1) == 1").value is False, code


@pytest.mark.parametrize(
    ("check", "names", "modules"),
    [
        ("assert f(x) == 1", ["f", "x"], {}),
        ("x = 1\nassert f(x) == len('a')", ["f"], {}),
        ("def g(f):\n    return f(y)\ng(h)", ["h", "y"], {}),
        ("class A:\n    z = f()\n[i for i in g()]", ["f", "g"], {}),
        ("import math\nassert math.pi < f()", ["f"], {}),
        ("assert math.pi < math.floor(f())", ["f"], {"math": "math"}),
        ("assert np.ones(1) == f() != pd", ["f", "pd"], {"np": "numpy"}),
        ("assert bisect([1], 1) == bisect([2], 1)", ["bisect"], {}),
        ("lambda: (yield_of(a) for a in b)", ["b", "yield_of"], {}),
    ],
)
def test_names_of_the_program_are_found(check, names, modules):
    assert foreign_names(check) == (names, modules)
