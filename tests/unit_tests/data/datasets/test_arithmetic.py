"""Additions: right solutions, and held-out problems that training never sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.data.datasets import make_dataset
from rlinf.data.datasets.arithmetic import ALPHABET, solution
from tests.unit_tests.data.settings import data_section


def problems(split: str, seed: int = 0, **keys) -> set[tuple[int, ...]]:
    dataset = make_dataset(data_section(type="arithmetic", **keys), split, seed)
    texts = [dataset[i].prompt for i in range(len(dataset))]
    assert len(set(texts)) == len(texts)
    return {tuple(map(int, text.rstrip("=").split("+"))) for text in texts}


@given(st.integers(1, 3), st.data())
def test_a_solution_adds_digit_by_digit(digits, data):
    numbers = st.integers(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)
    a, b = data.draw(numbers), data.draw(numbers)
    text = solution(a, b)
    *steps, last = text.split(";")
    assert int(last) == a + b and len(steps) == digits and set(text) <= set(ALPHABET)
    carry, total = 0, 0
    for place, step in enumerate(steps):
        left, right = step.split("=")
        terms = list(map(int, left.split("+")))
        assert sum(terms) == int(right)
        assert terms[:2] == [a // 10**place % 10, b // 10**place % 10]
        assert terms[2:] == ([] if place == 0 else [carry])
        carry = int(right) // 10
        total += int(right) % 10 * 10**place
    assert total + carry * 10**digits == a + b


def test_the_example_of_the_documentation():
    assert solution(47, 85) == "7+5=12;4+8+1=13;132"


@pytest.mark.parametrize(("digits", "count"), [(1, 100), (2, 8100)])
def test_each_problem_is_in_one_split_whatever_the_seed(digits, count):
    train, val = (problems(split, digits=digits) for split in ("train", "val"))
    assert not train & val and len(train) + len(val) == count
    assert {(b, a) for a, b in val} == val, "the other order of a held-out problem is held out"
    assert val == problems("val", seed=7, digits=digits)
    assert 0.05 < len(val) / count < 0.15


def test_fewer_validation_problems_are_among_the_held_out_ones():
    few, all_of_them = problems("val", val_size=50), problems("val")
    assert len(few) == 50 and few < all_of_them
    assert sum(a > 54 for a, _ in few) > 10, "not the smallest numbers only"
    with pytest.raises(ValueError, match="leaves no val problem of 1 digits"):
        problems("val", digits=1, held_out=1e-9)
