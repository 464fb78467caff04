"""Programs are scored by their tests, and cannot cheat by leaving or by looking."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.algorithms.rewards.code import (
    CodeReward,
    extract_program,
    read_tests,
    same_text,
    same_value,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs run on Linux only")

DOUBLE = "```python\nprint(2 * int(input()))\n```"
IN_OUT = {"inputs": ["1\n", "21"], "outputs": ["2\n", "42\n"]}


def reward(**keys) -> CodeReward:
    settings = {
        "timeout": 100.0,
        "test_timeout": 30.0,
        "memory_limit_mb": 256,
        "max_tests": None,
        "partial_credit": False,
        "allow_weak_sandbox": False,
    }
    return CodeReward(SimpleNamespace(**{**settings, **keys}))


@pytest.fixture(scope="module")
def rule():
    return reward()


def test_the_last_block_is_the_program():
    text = "a\n```python\nfirst\n```\nb\n```\nsecond\n```\n```json\n{}\n```"
    assert extract_program(text) == "second\n"
    assert extract_program("no block: `x`") is None


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        (DOUBLE, IN_OUT, 1.0),
        (DOUBLE, json.dumps(IN_OUT), 1.0),
        (DOUBLE, {**IN_OUT, "outputs": ["2", "43"]}, 0.0),
        ("```python\nprint(2)\n```", IN_OUT, 0.0),
        ("```python\nimport os; os._exit(0)\n```", IN_OUT, 0.0),
        ("no program", IN_OUT, 0.0),
        (
            "```python\ndef twice(x):\n    return 2 * x\n```",
            {"fn_name": "twice", "inputs": [[1], [[1, 2]]], "outputs": [2, [1, 2, 1, 2]]},
            1.0,
        ),
        ("```python\ndef f(x):\n    return x\n```", ["assert f(1) == 1", "assert f('a')"], 1.0),
        ("```python\ndef f(x):\n    return x\n```", "assert f(1) == 2", 0.0),
        ("```python\nimport sys\nsys.exit(0)\n```", {"tests": ["assert f() is None"]}, 0.0),
    ],
)
def test_programs_are_scored_by_their_tests(rule, response, answer, score):
    assert rule.score(response, answer)[0] == score


def test_an_assertion_that_cannot_be_judged_is_refused(rule):
    with pytest.raises(ValueError, match="uses no name of the program"):
        rule.score("```python\nimport sys\nsys.exit(0)\n```", {"tests": ["assert False"]})


def test_partial_credit_and_fewer_tests():
    answer = {"inputs": ["1", "2", "3", "x"], "outputs": ["2", "4", "7", "?"]}
    score, info = reward(partial_credit=True).score(DOUBLE, answer)
    assert score == 0.5 == info["passed"]
    assert reward(max_tests=2).score(DOUBLE, answer)[0] == 1.0


def test_a_program_that_hangs_is_told_and_ends_in_time():
    loop = "```python\nwhile True: pass\n```"
    score, info = reward(test_timeout=0.3, partial_credit=True, timeout=1.0).score(
        loop, {"inputs": ["1"] * 50, "outputs": ["1"] * 50}
    )
    assert (score, info["timeout"]) == (0.0, 1.0)


def test_right_answers_are_not_in_the_sandbox(rule):
    spy = (
        "```python\nimport gc, sys\nframe, seen = sys._getframe(), []\n"
        "while frame: seen.append(repr(frame.f_locals)); frame = frame.f_back\n"
        "seen += [repr(o) for o in gc.get_objects() if isinstance(o, (dict, list))]\n"
        "secret = '8675' + '309'\n"
        "print(secret if any(secret in s for s in seen) else 'nothing')\n```"
    )
    assert rule.score(spy, {"inputs": ["1"], "outputs": ["8675309"]})[0] == 0.0


@pytest.mark.parametrize("answer", [{}, [], "", {"inputs": ["1"], "outputs": []}, [1], None, 3])
def test_other_forms_of_tests_are_refused(answer):
    with pytest.raises(ValueError, match="tests"):
        list(read_tests(answer))


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("1 2\n3\n", "1 2 \n3", True),
        ("1 2\n", "1 3", False),
        ("0.3333333333", "0.33333333", True),
        ("7", "7.0", True),
        ("007", "7", False),
        ("1\n\n", "1", True),
        ("1\n2", "1", False),
        ("yes", "Yes", False),
    ],
)
def test_outputs_are_compared_line_by_line(found, expected, same):
    assert same_text(found, expected) is same


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(JSON, JSON)
def test_a_value_equals_itself_through_json(value, other):
    assert same_value(json.loads(json.dumps(value)), value)
    if json.dumps(value) != json.dumps(other) and not (
        isinstance(value, int | float) and isinstance(other, int | float)
    ):
        assert not same_value([value, 1], [other, 2])
    assert not same_value(True, 1) and not same_value("1", 1)


def test_how_programs_are_confined_is_said(rule):
    assert rule.about.startswith("programs run with no network (")
    assert "NOT" not in rule.about
