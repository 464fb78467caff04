"""Answers that are equal as mathematics, and those that only look alike."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rlinf.utils.processes.pool import ProcessPool, ProcessSpec

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def rule():
    from rlinf.algorithms.rewards.math import MathReward

    return MathReward(SimpleNamespace(timeout=9.0))


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        (r"So the answer is \boxed{\frac{1}{2}}.", "0.5", 1.0),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0),
        (r"first \boxed{7}, no: \boxed{8}", "8", 1.0),
        (r"first \boxed{8}, no: \boxed{7}", "8", 0.0),
        ("the total is 72", "Natalia sold 48/2 = 24 clips. #### 72", 1.0),
        (r"$x = 3$", "3", 1.0),
        (r"\boxed{1,000}", "1000", 1.0),
        (r"\boxed{\{1, 2\}}", r"\{2, 1\}", 1.0),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", 1.0),
        (r"\boxed{x+1}", "x-1", 0.0),
        ("I do not know", "3", 0.0),
        ("", "3", 0.0),
    ],
)
def test_equal_as_mathematics(rule, response, answer, score):
    assert rule.score(response, answer)[0] == score


def test_an_answer_that_is_no_mathematics_is_an_error_of_the_data(rule):
    with pytest.raises(ValueError, match="cannot be read as mathematics"):
        rule.score("3", "")


def test_threads_are_refused_instead_of_scoring_zero(rule):
    raised = []

    def score():
        try:
            rule.score(r"\boxed{1}", "1")
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=score)
    thread.start()
    thread.join()
    assert raised == ["math-verify works in the main thread of a process only"]


def test_in_a_pool_a_hang_costs_its_own_sample():
    # A third of it for each step: enough for a busy machine, and what hangs takes as long.
    settings = {"timeout": 12.0, "reward_type": "math"}
    spec = ProcessSpec("rlinf.algorithms.rewards.base:make_scorer", ("math", settings))
    pool = ProcessPool(spec, timeout=60.0)
    try:
        assert "NOT" not in pool.wait_ready()
        before = pool.pids
        good, bad, after = pool.map(
            [(text, "4", "", {}) for text in (r"\boxed{4}", r"\boxed{9^{9^{9^{9}}}}", r"\boxed{5}")]
        )
        assert pool.pids == before, "the alarm ended it, so the process could stay"
    finally:
        pool.close()
    assert good.value["score"] == 1.0 and after.value["score"] == 0.0
    assert bad.status == "timeout"
