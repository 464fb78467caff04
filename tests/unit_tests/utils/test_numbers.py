"""Numbers as people read them."""

from __future__ import annotations

import pytest

from rlinf.utils.numbers import interval, number, percent


@pytest.mark.parametrize(
    "value, words",
    [
        (48000, "48,000"),
        (1234567.8, "1,234,568"),
        (1234.5678, "1,235"),
        (401.345, "401.3"),
        (100.0, "100"),
        (0.094512, "0.09451"),
        (-12.3456, "-12.35"),
        (0.0, "0"),
        (0.000012345, "1.234e-05"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(value, words):
    assert number(value) == words


def test_fewer_digits():
    assert number(0.74449, 3) == "0.744" and number(12.34, 2) == "12" and number(512.0, 2) == "512"


def test_percent_and_intervals():
    assert percent(0.98) == "98.0%" and percent(0.3456, 0) == "35%"
    assert interval(*map(percent, (0.98, 0.93, 0.994))) == "98.0% (93.0% – 99.4%)"
