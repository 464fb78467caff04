"""Orders and seeds follow from what they are made of, and from nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlinf.data.hashing import mixed, permutation, seed_of


def slow_splitmix(x: int) -> int:
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_mixing_is_splitmix64(numbers):
    found = mixed(np.array(numbers, dtype=np.uint64))
    assert found.tolist() == [slow_splitmix(x) for x in numbers]


def test_the_first_number_of_splitmix64_is_the_published_one():
    assert mixed(np.array([0], dtype=np.uint64))[0] == 0xE220A8397B1DCDAF


@given(st.integers(0, 300), st.integers(0, 2**32), st.integers(0, 50))
def test_an_order_is_a_permutation_of_seed_and_epoch(count, seed, epoch):
    order = permutation(count, seed, epoch)
    assert sorted(order) == list(range(count))
    assert order.tolist() == permutation(count, seed, epoch).tolist()


def test_epochs_and_seeds_differ_and_places_are_uniform():
    orders = np.array([permutation(8, seed, epoch) for seed in range(50) for epoch in range(40)])
    assert len({tuple(order) for order in orders}) > 1900
    counts = np.array([np.bincount(orders[:, i], minlength=8) for i in range(8)])
    expected = len(orders) / 8
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 85  # 49 degrees of freedom: once in a thousand


def test_seeds_are_the_same_in_every_process():
    assert seed_of("a", 1) == seed_of("a", 1) != seed_of("a", 2)
