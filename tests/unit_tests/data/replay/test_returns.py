"""Discounts within a chunk of actions."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.data.replay.returns import Discount

REWARDS = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
VALID = np.array([[True, True, False], [False, True, True]])


def test_an_action_that_was_not_carried_out_takes_no_time():
    total, factor = Discount(0.5).chunk(REWARDS, VALID)
    assert total.tolist() == [1 + 0.5 * 2, 2 + 0.5 * 4]
    assert factor.tolist() == [0.25, 0.25]


def test_a_chunk_may_be_one_step():
    total, factor = Discount(0.5, "chunk").chunk(REWARDS, VALID)
    assert total.tolist() == [3, 6] and factor.tolist() == [0.5, 0.5]


def test_a_discount_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="gamma is 0.9 per 'second'"):
        Discount(0.9, "second")
