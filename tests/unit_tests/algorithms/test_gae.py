"""GAE against a loop that walks each env's episodes, one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.registry import calculate_adv_and_returns
from tests.unit_tests.algorithms.slow import loop_gae

D = torch.float64


def window(seed, n=11, envs=5, masked=False):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=D)

    dones = torch.rand(n, envs, generator=g) < 0.3
    terms = dones & (torch.rand(n, envs, generator=g) < 0.5)
    mask = torch.rand(n, envs, generator=g) < 0.7 if masked else torch.ones(n, envs).bool()
    return {
        "rewards": draw(n, envs),
        "values": draw(n + 1, envs),
        "dones": dones,
        "terminations": terms,
        "bootstrap_values": draw(n, envs),
        "loss_mask": mask,
    }


def reference(batch, gamma, lam):
    order = ("rewards", "values", "dones", "terminations", "bootstrap_values", "loss_mask")
    return loop_gae(*(batch[name] for name in order), gamma, lam)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 12),
    masked=st.booleans(),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_matches_the_loop(seed, n, masked, gamma, lam):
    batch = window(seed, n, masked=masked)
    advantages, returns = calculate_adv_and_returns(
        adv_type="gae", gamma=gamma, gae_lambda=lam, **batch
    )
    expected = reference(batch, gamma, lam)
    torch.testing.assert_close(advantages, expected)
    mask = batch["loss_mask"]
    torch.testing.assert_close(returns[mask], (expected + batch["values"][:-1])[mask])
    assert (advantages[~mask] == 0).all() and (returns[~mask] == 0).all()
    if not masked:
        del batch["loss_mask"]
        unmasked, _ = calculate_adv_and_returns(
            adv_type="gae", gamma=gamma, gae_lambda=lam, **batch
        )
        torch.testing.assert_close(unmasked, advantages)


def test_truncation_bootstraps_and_termination_does_not():
    common = {
        "adv_type": "gae",
        "rewards": torch.tensor([[1.0, 1.0, 1.0]]),
        "values": torch.tensor([[0.0, 0.0, 0.0], [100.0, 100.0, 100.0]]),
        "dones": torch.tensor([[True, True, False]]),
        "terminations": torch.tensor([[False, True, False]]),
        "bootstrap_values": torch.tensor([[10.0, 10.0, 10.0]]),
        "gamma": 0.5,
    }
    advantages, _ = calculate_adv_and_returns(**common)
    assert advantages.tolist() == [[6.0, 1.0, 51.0]]
    advantages, _ = calculate_adv_and_returns(bootstrap_type="always", **common)
    assert advantages.tolist() == [[6.0, 6.0, 51.0]]


def test_what_is_not_valid_may_hold_anything():
    batch = window(3, masked=True)
    before, _ = calculate_adv_and_returns(adv_type="gae", **batch)
    truncated = batch["dones"] & ~batch["terminations"]
    batch["rewards"][~batch["loss_mask"]] = torch.nan
    batch["values"][:-1][~batch["loss_mask"]] = torch.inf
    batch["bootstrap_values"][~truncated] = torch.nan
    batch["values"][-1][batch["dones"][-1]] = torch.nan
    after, returns = calculate_adv_and_returns(adv_type="gae", **batch)
    assert torch.equal(before, after) and returns.isfinite().all()


def test_without_values_it_is_the_return_to_go():
    rewards = torch.tensor([[1.0], [2.0], [4.0]])
    dones = torch.tensor([[False], [True], [False]])
    advantages, returns = calculate_adv_and_returns(
        adv_type="gae", rewards=rewards, dones=dones, gamma=0.5, gae_lambda=0.3
    )
    assert advantages.flatten().tolist() == [2.0, 2.0, 4.0]
    assert torch.equal(advantages, returns)


def test_lambda_one_gives_returns_that_do_not_depend_on_inner_values():
    batch = window(5)
    _, one = calculate_adv_and_returns(adv_type="gae", gae_lambda=1.0, **batch)
    batch["values"][:-1] += 7.0
    _, other = calculate_adv_and_returns(adv_type="gae", gae_lambda=1.0, **batch)
    torch.testing.assert_close(one, other)


def test_values_with_gradient_are_constants():
    batch = window(1)
    batch["values"].requires_grad_()
    advantages, _ = calculate_adv_and_returns(adv_type="gae", **batch)
    assert not advantages.requires_grad


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"bootstrap_values": None}, "bootstrap_values must hold"),
        ({"values": torch.zeros(11, 5)}, r"values has the shape \(11, 5\).*\(12, 5\)"),
        ({"dones": torch.zeros(12, 5)}, r"dones has the shape \(12, 5\)"),
        ({"dones": torch.zeros(11, 5)}, "a termination is a done"),
        ({"bootstrap_type": "never"}, "allowed: standard, always"),
        ({"rewards": torch.zeros(11, 5, 1)}, "time first"),
    ],
)
def test_bad_input_is_named(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        calculate_adv_and_returns(adv_type="gae", **(window(0) | change))
