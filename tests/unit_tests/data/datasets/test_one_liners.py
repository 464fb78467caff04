"""Lines of code to complete: what the comment says is what the tests check."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.data.datasets import make_dataset
from rlinf.data.datasets.one_liners import OPERATIONS, code_of, draw_tree, value_of, words_of


def dataset(split: str, **changes: Any) -> Any:
    settings = {"depth": 2, "mistakes": 0.0, "held_out": 0.2, "size": 300, "val_size": 100}
    cfg = SimpleNamespace(**{"type": "one_liners", **settings, **changes})
    return make_dataset(cfg, split, seed=1)


def passes(record: Any) -> bool:
    space: dict[str, Any] = {}
    exec(record.metadata["prefix"] + record.solution, space)
    tests = record.answer
    return [space["f"](*case) for case in tests["inputs"]] == tests["outputs"]


def test_worked_solutions_pass_their_tests() -> None:
    for record in (dataset("train")[i] for i in range(300)):
        assert passes(record), record


def test_mistakes_fail_them_as_often_as_is_said() -> None:
    wrong = sum(
        not passes(record) for record in (dataset("train", mistakes=0.4)[i] for i in range(300))
    )
    assert 90 < wrong < 240


def test_validation_has_lines_that_training_never_has() -> None:
    train = {dataset("train")[i].prompt for i in range(300)}
    val = {dataset("val")[i].prompt for i in range(100)}
    assert not train & val and len(val) > 50


def test_words_and_code_mean_the_same() -> None:
    tree = ("larger", ("a", ("square", ("b",))))
    assert words_of(tree) == "larger of a and square of b"
    assert code_of(tree) == "max(a,pow(b,2))"
    assert code_of(tree, lambda: True) == "min(a,abs(b))"
    assert value_of(tree, [3, -2, 0]) == 4


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_what_its_code_does(name: str) -> None:
    operation = OPERATIONS[name]
    values = {"a": -3, "b": 4}
    names = ["a", "b"][: operation.inputs]
    found = eval(operation.code.format(*names), dict(values))
    assert found == operation.value(*(values[each] for each in names))


def test_drawing_is_repeatable() -> None:
    trees = [draw_tree(random.Random(3), 3) for _ in range(2)]
    assert trees[0] == trees[1]
