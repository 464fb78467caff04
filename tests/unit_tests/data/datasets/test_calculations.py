"""Calculations in words: held out ones are never trained on, and solutions ask the calculator."""

from types import SimpleNamespace

import pytest

from rlinf.agents.tools.calculator import calculator
from rlinf.data.datasets import make_dataset
from rlinf.data.datasets.calculations import SIGNS, is_held_out


def section(**changes):
    values = {"type": "calculations", "digits": 3, "terms": 3, "held_out": 0.2}
    return SimpleNamespace(**values | {"size": 300, "val_size": 100} | changes)


def words(record):
    return record.prompt.split()[:-1]


def test_what_is_held_out_is_never_trained_on():
    train, val = (make_dataset(section(), split, seed=1) for split in ("train", "val"))
    assert (len(train), len(val)) == (300, 100)
    assert all(is_held_out(words(val[i]), 0.2) for i in range(100))
    assert not any(is_held_out(words(train[i]), 0.2) for i in range(300))
    held_out = sum(is_held_out(["1", "plus", str(i)], 0.2) for i in range(1000))
    assert 150 < held_out < 250


def test_solutions_are_what_a_calculator_says():
    data = make_dataset(section(), "train", seed=1)
    terms, digits = set(), set()
    for i in range(300):
        record = data[i]
        asked, answered, answer = record.solution
        ((tool, arguments),) = asked["calls"]
        expression = arguments["expression"]
        assert tool == "calculator" and calculator(**arguments) == record.answer
        assert answered["answers"] == [("calculator", record.answer)]
        assert answer["content"] == f"<answer>{record.answer}</answer>"
        assert "".join(SIGNS.get(word, word) for word in words(record)) == expression
        numbers = words(record)[::2]
        terms.add(len(numbers))
        digits |= {len(number) for number in numbers}
    assert terms == {2, 3} and digits == {1, 2, 3}


@pytest.mark.parametrize("split", ["train", "val"])
def test_records_follow_from_seed_and_place(split):
    one, same, other = (make_dataset(section(), split, seed) for seed in (1, 1, 2))
    assert [one[i].prompt for i in range(50)] == [same[i].prompt for i in range(50)]
    assert [one[i].prompt for i in range(50)] != [other[i].prompt for i in range(50)]
    assert one.redraw(3, 1).prompt != one[3].prompt and one.redraw(3, 0) == one[3]
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
