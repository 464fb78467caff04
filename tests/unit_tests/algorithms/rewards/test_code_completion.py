"""The reward of completions: the tests decide, whatever the completion does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.algorithms.rewards.code_completion import CodeCompletionReward

TESTS = {"inputs": [[1, 2], [3, 4], [5, -6]], "outputs": [3, 7, -1], "fn_name": "f"}
PREFIX = {"prefix": "def f(a, b):\n    return "}


@pytest.fixture(scope="module")
def reward() -> CodeCompletionReward:
    settings: dict[str, Any] = {"test_timeout": 2.0, "memory_limit_mb": 256, "max_tests": None}
    return CodeCompletionReward(
        SimpleNamespace(**settings, partial_credit=False, allow_weak_sandbox=False)
    )


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("a+b", 1.0),
        ("b + a\n", 1.0),
        ("a-b", 0.0),
        ("", 0.0),
        ("((", 0.0),
        ("1/0", 0.0),
        ("[3, 7, -1]", 0.0),
        ("exit(0)", 0.0),
        ("open('/etc/passwd').read()", 0.0),
        ("a+b\nclass int(int): __eq__ = lambda *x: True", 1.0),
        ("type('x', (int,), {'__eq__': lambda *x: True})(9)", 0.0),
    ],
)
def test_the_tests_decide(reward: CodeCompletionReward, response: str, score: float) -> None:
    assert reward.score(response, TESTS, metadata=PREFIX)[0] == score


def test_one_that_hangs_is_ended_and_the_next_is_judged(reward: CodeCompletionReward) -> None:
    score, info = reward.score("all(True for _ in iter(int, 1))", TESTS, metadata=PREFIX)
    assert score == 0 and info["timeout"] == 1
    assert reward.score("a+b", TESTS, metadata=PREFIX)[0] == 1


def test_one_completion_does_not_reach_another(reward: CodeCompletionReward) -> None:
    reward.score("a+b\nimport builtins; builtins.exec = None", TESTS, metadata=PREFIX)
    assert reward.score("a+b", TESTS, metadata=PREFIX)[0] == 1


def test_other_tests_are_refused(reward: CodeCompletionReward) -> None:
    with pytest.raises(ValueError, match="fn_name"):
        reward.score("a+b", {"inputs": ["1"], "outputs": ["2"]}, metadata=PREFIX)
