"""Whatever a reward process says, what comes of it is a score or an outcome without one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from rlinf.data.reasoning import Prompt
from rlinf.utils.processes.pool import Outcome
from rlinf.workers.reward.scorer import Scorer

PROMPT = Prompt(0, [1], "", "", "", {})
ODD = [
    None,
    1.0,
    [1.0],
    {"score": 1.0},
    {"score": None, "info": {}},
    {"score": "1.0", "info": {}},
    {"score": True, "info": {}},
    {"score": float("nan"), "info": {}},
    {"score": 1.0, "info": []},
    {"score": 1.0, "info": {"length": "long"}},
    {"score": "x" * 1_000_000, "info": {}},
]


class Answers:
    """A pool whose processes answer with something that is given."""

    def __init__(self, value: Any):
        self._value = value

    def submit(self, *args: Any) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        future.set_result(Outcome("ok", self._value, seconds=0.5))
        return future


def score(value: Any) -> Outcome:
    scorer = object.__new__(Scorer)
    scorer._pool = Answers(value)

    async def ask() -> Outcome:
        return await scorer.score("", PROMPT)

    return asyncio.run(ask())


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:40])
def test_an_odd_answer_is_an_error_of_its_sample(value):
    outcome = score(value)
    assert (outcome.status, outcome.value, outcome.seconds) == ("error", None, 0.5)
    assert "no score" in outcome.message and len(outcome.message) < 500


def test_a_score_and_numbers_about_it_are_taken():
    value = {"score": 0.5, "info": {"length": 3.0}}
    assert score(value) == Outcome("ok", value, seconds=0.5)
