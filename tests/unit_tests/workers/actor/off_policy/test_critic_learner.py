"""What is told of Q-values: the mean of all heads, that of each, and how far they are off."""

import pytest
import torch

from rlinf.workers.actor.off_policy.critic_learner import _value_metrics
from rlinf.workers.actor.off_policy.settings import OffPolicySettings
from tests.unit_tests.workers.actor.off_policy.replaying import make_sac_cfg


@pytest.mark.parametrize(("given", "expected"), [(None, None), (-1, None), (2, 2)])
def test_minus_one_is_all_critics(given, expected):
    cfg = make_sac_cfg({"algorithm.critic_subsample_size": given})
    assert OffPolicySettings.of(cfg, 1).critic_subsample_size == expected


@pytest.mark.parametrize("heads", [2, 5])
def test_values_and_errors_are_means_over_the_batch(heads):
    values, target = torch.randn(heads, 6), torch.randn(6)
    pieces = [(values[:, :2], target[:2]), (values[:, 2:], target[2:])]
    found: dict[str, float] = {}
    for part, wanted in pieces:
        for name, value in _value_metrics(part, wanted, 1 / 6).items():
            found[name] = found.get(name, 0.0) + float(value)
    error = sum(abs(float(values[h, i] - target[i])) for h in range(heads) for i in range(6))
    assert found["td_error"] == pytest.approx(error / (heads * 6))
    assert found["q_values"] == pytest.approx(float(values.mean()), abs=1e-6)
    of_heads = {name for name in found if name.startswith("q_values_")}
    assert of_heads == ({"q_values_1", "q_values_2"} if heads == 2 else set())
    for name in of_heads:
        expected = float(values[int(name[-1]) - 1].mean())
        assert found[name] == pytest.approx(expected, abs=1e-6)
