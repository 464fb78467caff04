"""The sum tree against plain sums."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.data.replay.sampling import SumTree


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_tree_finds_what_running_sums_find(count, seed):
    random = np.random.default_rng(seed)
    values = random.integers(0, 5, count).astype(float)
    tree = SumTree(count)
    # Whole numbers are summed without rounding, in whatever order.
    for _ in range(4):
        leaves = random.integers(0, count, 6)
        new = random.integers(0, 5, 6).astype(float)
        values[leaves] = new
        tree.set(np.arange(count), values)
        tree.set(leaves, new)
    assert tree.total == values.sum()
    assert tree.least == min(values[values > 0], default=np.inf)
    assert [tree.before(i) for i in range(count)] == (values.cumsum() - values).tolist()
    if tree.total:
        sums = random.random(50) * tree.total
        assert tree.find(sums).tolist() == np.searchsorted(values.cumsum(), sums, "right").tolist()


def test_rounding_never_finds_a_leaf_of_nothing():
    tree = SumTree(8)
    tree.set(np.arange(6), np.array([0.1, 0.2, 0.3, 0.1, 0.7, 0.1]))
    assert tree.find(np.array([tree.total, tree.total * 2, 1e300])).tolist() == [5, 5, 5]
    tree.set(np.arange(3), 0.0)
    assert tree.find(np.zeros(2)).tolist() == [3, 3]


def test_a_tree_follows_from_its_leaves():
    random = np.random.default_rng(0)
    values = random.random(100)
    one, other = SumTree(100), SumTree(100)
    one.set(np.arange(100), values)
    for leaf in random.permutation(100):
        other.set(np.array([leaf]), values[leaf] * 3)
        other.set(np.array([leaf]), values[leaf])
    assert one.total == other.total
    sums = random.random(1000) * one.total
    assert np.array_equal(one.find(sums), other.find(sums))
