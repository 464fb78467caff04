"""Differences between rollout and learner: exact over micro-batches, and when they are too much."""

import math

import pytest
import torch

from rlinf.algorithms.agreement import GREATEST, Tolerance, logprob_gap, value_gap
from rlinf.algorithms.metrics import merge_metrics, reduce_metrics


def test_greatest_and_mean_are_those_of_what_is_compared():
    ours = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    theirs = torch.tensor([[0.5, 1.0], [2.0, 3.25], [99.0, -99.0]])
    numbers = reduce_metrics(logprob_gap(ours, theirs, torch.tensor([True, True, False])))
    assert numbers == {"logprob_max": 0.5, "logprob_mean": pytest.approx(0.75 / 4)}
    # Tokens of a sequence have a mask of their own shape.
    mask = torch.tensor([[True, False], [False, True], [False, False]])
    numbers = reduce_metrics(logprob_gap(ours, theirs, mask))
    assert numbers == {"logprob_max": 0.5, "logprob_mean": pytest.approx(0.75 / 2)}


def test_micro_batches_do_not_matter():
    g = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(2, 30, 3, generator=g)
    mask = torch.rand(30, generator=g) < 0.5
    whole = reduce_metrics(logprob_gap(ours, theirs, mask) | value_gap(ours, theirs, mask))
    parts = [
        logprob_gap(ours[rows], theirs[rows], mask[rows])
        | value_gap(ours[rows], theirs[rows], mask[rows])
        for rows in torch.arange(30).split(7)
    ]
    assert reduce_metrics(merge_metrics(parts)) == pytest.approx(whole)


def test_nothing_to_compare_has_no_numbers():
    assert reduce_metrics(logprob_gap(torch.ones(3), torch.zeros(3), torch.zeros(3) > 0)) == {}


def test_values_are_compared_relative_to_their_size():
    numbers = reduce_metrics(value_gap(torch.tensor([1000.1, 0.1]), torch.tensor([1000.0, 0.0])))
    assert numbers["value_max"] == pytest.approx(0.1)
    assert numbers["value_mean"] == pytest.approx((0.1 / 1001 + 0.1) / 2, rel=1e-3)


def test_only_the_same_infinity_agrees_and_nan_only_with_nan():
    inf, nan = math.inf, math.nan
    both = reduce_metrics(logprob_gap(torch.tensor([inf, nan]), torch.tensor([inf, nan])))
    assert both == {"logprob_max": 0.0, "logprob_mean": 0.0}
    for ours, theirs in ((nan, 0.0), (0.0, nan), (inf, 0.0), (-inf, inf), (nan, inf)):
        numbers = reduce_metrics(logprob_gap(torch.tensor([ours]), torch.tensor([theirs])))
        assert numbers["logprob_max"] == inf
        assert Tolerance.of(None, torch.float32).exceeded(numbers)


def test_other_shapes_are_not_broadcast():
    with pytest.raises(ValueError, match=r"\[3, 1\] numbers to compare with \[3\]"):
        logprob_gap(torch.ones(3, 1), torch.ones(3))


def test_sixteen_bits_round_more():
    strict, lax = Tolerance.of(None, torch.float32), Tolerance.of(None, *[torch.float32] * 2)
    assert strict == lax
    lax = Tolerance.of(None, torch.float32, torch.bfloat16)
    assert lax.mean > 10 * strict.mean
    assert Tolerance.of(0.2, torch.float32) == Tolerance(0.2, 0.2 * GREATEST)


def test_what_is_past_the_tolerance_is_said():
    tolerance = Tolerance(0.01, 1.0)
    fine = {"logprob_mean": 0.01, "logprob_max": 1.0, "value_mean": 0.0, "value_max": 0.9}
    assert tolerance.exceeded(fine) == []
    (words,) = tolerance.exceeded(fine | {"logprob_mean": 0.02})
    assert words == "log-probabilities differ by 0.02 on average (tolerance 0.01)"
    (words,) = tolerance.exceeded(fine | {"value_max": 2.0})
    assert words == "values differ by 2 at most (tolerance 1)"
    assert len(tolerance.exceeded(fine | {"logprob_mean": math.nan, "logprob_max": math.inf})) == 2
