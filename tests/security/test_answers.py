"""Answers that a scorer of another package would evaluate, and that want to be right."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlinf.algorithms.rewards.plain_answer import is_plain
from rlinf.algorithms.rewards.reasoning_gym import ReasoningGymReward

reasoning_gym = pytest.importorskip("reasoning_gym")

READS = "__import__('sys')._getframe(1).f_locals['oracle_answer'].split()"
CHANGES = (
    "[setattr(__import__('reasoning_gym').algorithmic.spiral_matrix.SpiralMatrixDataset, "
    "'score_answer', lambda *_: 1.0)]"
)

CODE = [
    READS,
    CHANGES,
    "exec('x = 1')",
    "open('/etc/passwd').read()",
    "().__class__.__base__.__subclasses__()",
    "[c for c in (1, 2)]",
    "(lambda: 1)()",
    "sympify('_' + '_import_' + '_(1)')",
    "sin('1')",
    "sin(x, evaluate=False)",
    "sin(x).subs(x, 1)",
    "x.func!",
    "vars()!",
    "f'{globals()}'",
    "(y := 3)",
    "_",
    "(" * 10_000 + "1" + ")" * 10_000,
    "1+" * 30_000 + "1",
]
PLAIN = [
    "42",
    "-3.5e7",
    "[[1, 2], [3, 4]]",
    "{'a': [True, None]}",
    "sin(x)*exp(2*x) + C",
    "3! + factorial(4)",
    "sqrt(x**2 + 1)/2",
    "(1 + 2) * 3 != 4",
    "Alice is a knight, and Bob is a knave.",
    "Move disk 1 from Peg 1 to Peg 3 (the last one).",
    "10:30 PM",
    "2024-01-02",
    "R U' F2",
    "P and not Q",
]


@pytest.mark.parametrize("answer", CODE, ids=range(len(CODE)))
def test_code_is_not_plain(answer):
    assert not is_plain(answer)


@pytest.mark.parametrize("answer", PLAIN)
def test_values_formulas_and_texts_are(answer):
    assert is_plain(answer)


@pytest.fixture
def task():
    dataset = reasoning_gym.create_dataset("spiral_matrix", seed=1, size=1)
    kept = type(dataset).score_answer
    yield dataset
    type(dataset).score_answer = kept


def score(task, text: str) -> float:
    reward = ReasoningGymReward(SimpleNamespace(answer_tag="answer"))
    entry = task[0]
    metadata = {"gym_task": "spiral_matrix", "gym_config": {}, "gym_entry": entry}
    return reward.score(f"<answer>{text}</answer>", entry["answer"], metadata=metadata)[0]


def test_the_attacks_work_on_the_task_itself(task):
    """Otherwise the next test would prove nothing."""
    assert task.score_answer(READS, task[0]) > 0.0
    assert task.score_answer(CHANGES, task[0]) == 0.0
    assert task.score_answer("wrong", task[0]) == 1.0


def test_no_answer_changes_the_scorer(task):
    for answer in CODE:
        assert score(task, answer) == 0.0
    assert score(task, "wrong") == 0.0
    assert score(task, task[0]["answer"]) == 1.0
    assert score(task, str(task[0]["answer"].split())) == pytest.approx(0.1)
