"""Ages of samples, and what is too old to learn from."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from rlinf.workers.actor.policy_ages import PolicyAges

ENGINE = SimpleNamespace(
    device=torch.device("cpu"), all_reduce=lambda t: t, all_reduce_max=lambda t: t
)
VERSIONS = torch.tensor([[3, 3], [4, 3], [5, 2]])
VALID = torch.tensor([[[1, 1], [1, 0]], [[1, 1], [1, 1]], [[0, 0], [1, 1]]], dtype=torch.bool)


def test_ages_are_counted_in_updates_and_by_env_steps():
    ages = PolicyAges(VERSIONS, version=5, oldest=2)
    assert ages.ages.tolist() == [[2, 2], [1, 2], [0, 3]]
    assert ages.fresh.tolist() == [[True, True], [True, True], [True, False]]
    metrics = ages.metrics(VALID, ENGINE)
    # Two actions of age 2, one of 2, two of 1, two of 2, none, and two of 3.
    assert metrics["policy_age"] == (2 * 2 + 2 + 2 * 1 + 2 * 2 + 2 * 3) / 9
    assert metrics["policy_age_max"] == 2.0 and metrics["stale_dropped"] == 2.0


def test_without_a_limit_nothing_is_too_old():
    ages = PolicyAges(VERSIONS, version=5, oldest=0)
    metrics = ages.metrics(VALID, ENGINE)
    assert ages.fresh is None
    assert metrics["policy_age_max"] == 3.0 and metrics["stale_dropped"] == 0.0
