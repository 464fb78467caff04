"""Rewards that compare texts: arithmetic, searchr1, vqa; and what all of them share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.algorithms.rewards import get_reward_class, register_reward, reward_registry
from rlinf.algorithms.rewards.base import Reward, make_scorer, tagged
from rlinf.algorithms.rewards.searchr1 import normalise
from rlinf.data.datasets.arithmetic import solution


def reward(name: str, **keys):
    return get_reward_class(name)(SimpleNamespace(**keys))


@given(st.integers(10, 99), st.integers(10, 99), st.integers(0, 200))
def test_arithmetic_takes_the_sum_alone(a, b, other):
    rule = reward("arithmetic")
    assert rule.score(solution(a, b), str(a + b)) == (1.0, {"answered": 1.0})
    assert rule.score(solution(a, b), a + b)[0] == 1.0
    text = solution(a, b).rpartition(";")[0] + f";{other}"
    assert rule.score(text, str(a + b))[0] == float(other == a + b)


@pytest.mark.parametrize("response", ["", ";", "7+5=12;4+8+1=13", "0132", "x;132 ", "132;"])
def test_arithmetic_refuses_other_forms(response):
    assert reward("arithmetic").score(response, "132")[0] == 0.0


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        ("<answer>The Eiffel Tower!</answer>", "eiffel tower", 1.0),
        ("<answer>no</answer> wait <answer> Paris </answer>", ["Rome", "paris"], 1.0),
        ("<answer>Paris</answer><answer>Rome</answer>", {"target": ["Paris"]}, 0.0),
        ("Paris", "Paris", 0.0),
        ("<answer>Paris", "Paris", 0.0),
        ("<answer>x</answer>" * 10 + "<answer>Paris</answer>", "Paris", 0.25),
        ("<answer><answer>Paris</answer>", "Paris", 1.0),
    ],
)
def test_searchr1(response, answer, score):
    assert reward("searchr1").score(response, answer)[0] == score


def test_searchr1_needs_an_answer_to_compare_with():
    with pytest.raises(ValueError, match="must be a text, a list of texts"):
        reward("searchr1").score("<answer>x</answer>", {"other": 1})


@given(st.text(alphabet="aA theTHE.,! \n", max_size=30))
def test_normalising_twice_changes_nothing(text):
    assert normalise(normalise(text)) == normalise(text)


@pytest.mark.parametrize(
    ("response", "answer", "parts"),
    [
        ("<think>hm</think><answer>B</answer>", "B", (1, 1, 1)),
        ("<think>hm</think><answer>(b).</answer>", "B", (1, 1, 1)),
        ("<answer>B</answer>", "A", (0, 0, 1)),
        ("<answer>3.50</answer>", 3.5, (1, 0, 1)),
        ("<answer>1,200</answer>", "1200", (1, 0, 1)),
        ("<answer>B</answer><think>late</think>", "B", (1, 0, 1)),
        ("<think>a</think><think>b</think><answer>B</answer>", "B", (1, 0, 1)),
        ("<answer>A</answer><answer>B</answer>", "B", (1, 0, 0)),
        ("B", "B", (0, 0, 0)),
    ],
)
def test_vqa_is_a_weighted_sum(response, answer, parts):
    rule = reward("vqa", qa_weight=1.0, think_weight=0.25, answer_weight=0.5)
    score, info = rule.score(response, answer)
    assert tuple(info.values()) == parts
    assert score == pytest.approx(parts[0] + 0.25 * parts[1] + 0.5 * parts[2])


@given(st.lists(st.text(alphabet="ab<>/ \n", max_size=10), max_size=5))
def test_tags_give_back_what_is_inside(parts):
    text = "x".join(f"<t>{part}</t>" for part in parts)
    assert tagged(text, "t") == [part.strip() for part in parts]


def test_every_built_in_reward_can_be_found():
    for name in ("arithmetic", "code", "math", "reasoning_gym", "searchr1", "vqa"):
        assert issubclass(reward_registry[name], Reward)
        assert reward_registry[name].isolation == {
            "code": "process",
            "math": "strict",
            "reasoning_gym": "strict",
        }.get(name, "none")


def test_a_scorer_checks_what_a_reward_returns():
    class Odd(Reward):
        def score(self, response, answer, *, prompt="", metadata={}):  # noqa: B006
            return {"nan": float("nan"), "two": (2, {"len": len(prompt)})}.get(response, 1)

    register_reward("odd_for_tests", Odd)
    scorer = make_scorer("odd_for_tests", {})
    assert scorer("one", None, "", {}) == {"score": 1.0, "info": {}}
    assert scorer("two", None, "abc", {}) == {"score": 2.0, "info": {"len": 3.0}}
    with pytest.raises(ValueError, match="scored nan; it must be finite"):
        scorer("nan", None, "", {})
