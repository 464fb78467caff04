"""GSPO and CISPO against their formulas: values, gradients, clipping."""

import math

import pytest
import torch

from rlinf.algorithms.aggregation import MODES
from rlinf.algorithms.metrics import reduce_metrics
from rlinf.algorithms.registry import policy_loss
from rlinf.algorithms.surrogates import clip_range
from tests.unit_tests.algorithms.slow import LENGTH, aggregate, clip, rows_of, sequence_ratio

D = torch.float64
LOW, HIGH = 0.05, 0.08


def tokens(seed=0, rows=6, length=7, spread=0.3, per_response=False):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=D)

    old = draw(rows, length) - 2
    mask = torch.rand(rows, length, generator=g) < 0.7
    mask[1] = False
    advantages = draw(rows, 1).expand(rows, length) if per_response else draw(rows, length)
    return {
        "logprobs": (old + spread * draw(rows, length)).requires_grad_(),
        "old_logprobs": old,
        "advantages": advantages.clone(),
        "loss_mask": mask,
        "loss_length": LENGTH,
    }


def run(batch, kind, mode="token-mean", **settings):
    settings = {"clip_ratio_low": LOW, "clip_ratio_high": HIGH} | settings
    return policy_loss(loss_type="actor", policy_loss=kind, loss_agg_func=mode, **settings, **batch)


def gspo_ratios(batch):
    """s of each row; 1 where nothing is valid."""
    logps, olds = batch["logprobs"].tolist(), batch["old_logprobs"].tolist()
    found = []
    for b, row in enumerate(batch["loss_mask"].tolist()):
        valid = [t for t, counts in enumerate(row) if counts]
        pairs = [logps[b][t] for t in valid], [olds[b][t] for t in valid]
        found.append(sequence_ratio(*pairs) if valid else 1.0)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_gspo_matches_the_loop(mode):
    batch = tokens()
    loss, metrics = run(batch, "gspo", mode)
    s, adv = gspo_ratios(batch), batch["advantages"].tolist()

    def term(b, t):
        return max(-adv[b][t] * s[b], -adv[b][t] * clip(s[b], 1 - LOW, 1 + HIGH))

    rows = rows_of(batch["loss_mask"], term)
    assert loss.item() == pytest.approx(aggregate(rows, mode), rel=1e-9)
    shown = reduce_metrics(metrics)
    ratios = rows_of(batch["loss_mask"], lambda b, t: s[b])
    assert shown["actor/ratio"] == pytest.approx(aggregate(ratios, "token-mean"))
    assert shown["actor/ratio_max"] == pytest.approx(max(max(row) for row in ratios if row))

    def clipped(b, t):
        return (adv[b][t] > 0 and s[b] > 1 + HIGH) or (adv[b][t] < 0 and s[b] < 1 - LOW)

    share = aggregate(rows_of(batch["loss_mask"], clipped), "token-mean")
    assert shown["actor/clip_fraction"] == pytest.approx(share) and 0 < share < 1


def test_the_gradient_of_gspo_is_that_of_the_sequence_objective():
    """J = 1/G Σ_i min(s_i A_i, clip(s_i) A_i), written down as the paper has it."""
    batch = tokens(seed=3, per_response=True)
    loss, _ = run(batch, "gspo", "seq-mean-token-mean")
    (found,) = torch.autograd.grad(loss, batch["logprobs"])
    terms = []
    for b in range(6):
        valid = batch["loss_mask"][b]
        if not valid.any():
            continue
        s = (batch["logprobs"][b] - batch["old_logprobs"][b])[valid].mean().exp()
        advantage = batch["advantages"][b, 0]
        terms.append(torch.minimum(s * advantage, s.clamp(1 - LOW, 1 + HIGH) * advantage))
    (expected,) = torch.autograd.grad(-torch.stack(terms).mean(), batch["logprobs"])
    torch.testing.assert_close(found, expected)
    zero, moving = [(found[b] != 0).any().item() for b in range(6)], batch["loss_mask"].any(1)
    assert any(zero) and not all(flag for flag, m in zip(zero, moving, strict=True) if m)


def test_numbers_confirm_the_gradient_of_gspo():
    batch = tokens(seed=3, per_response=True)

    def loss(logprobs):
        changed = batch | {"logprobs": logprobs}
        return run(changed, "gspo", "seq-mean-token-sum", clip_ratio_low=0.9, clip_ratio_high=9.0)[
            0
        ]

    assert torch.autograd.gradcheck(loss, (batch["logprobs"],))


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_gspo_have_advantages_of_their_own(mode):
    """GSPO-token: a token's gradient is s A_t ∇ log π_t, where s is not clipped."""
    batch = tokens(seed=5)
    loss, _ = run(batch, "gspo", mode, clip_ratio_low=0.9, clip_ratio_high=9.0)
    (found,) = torch.autograd.grad(loss, batch["logprobs"])
    s, mask = torch.tensor(gspo_ratios(batch), dtype=D), batch["loss_mask"]
    weights = torch.zeros_like(found)
    for b, t in mask.nonzero().tolist():
        one = [[0.0] * int(row.sum()) for row in mask]
        one[b][0] = 1.0
        weights[b, t] = aggregate(one, mode)
    torch.testing.assert_close(found, -weights * s[:, None] * batch["advantages"])


@pytest.mark.parametrize("mode", MODES)
def test_cispo_matches_the_loop(mode):
    batch = tokens(spread=0.2)
    loss, metrics = run(batch, "cispo", mode)
    logp, old = batch["logprobs"].tolist(), batch["old_logprobs"].tolist()
    adv, mask = batch["advantages"].tolist(), batch["loss_mask"]

    def weight(b, t):
        return clip(math.exp(logp[b][t] - old[b][t]), 1 - LOW, 1 + HIGH)

    rows = rows_of(mask, lambda b, t: -weight(b, t) * adv[b][t] * logp[b][t])
    assert loss.item() == pytest.approx(aggregate(rows, mode), rel=1e-9)
    (found,) = torch.autograd.grad(loss, batch["logprobs"])
    for b, t in mask.nonzero().tolist():
        one = [[0.0] * int(row.sum()) for row in mask]
        one[b][0] = -weight(b, t) * adv[b][t]
        assert found[b, t].item() == pytest.approx(aggregate(one, mode), rel=1e-9)
        assert found[b, t] != 0, "a clipped token has a gradient as well"
    assert (found[~mask] == 0).all()
    outside = rows_of(mask, lambda b, t: weight(b, t) != math.exp(logp[b][t] - old[b][t]))
    share = aggregate(outside, "token-mean")
    assert reduce_metrics(metrics)["actor/clip_fraction"] == pytest.approx(share)
    assert 0 < share < 1


@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo"])
def test_on_policy_all_have_the_gradient_of_reinforce(kind):
    batch = tokens(spread=0.0)
    loss, _ = run(batch, kind)
    (found,) = torch.autograd.grad(loss, batch["logprobs"])
    expected = torch.where(batch["loss_mask"], -batch["advantages"], 0.0)
    torch.testing.assert_close(found, expected / batch["loss_mask"].sum())


@pytest.mark.parametrize("kind", ["gspo", "cispo"])
def test_weights_multiply_the_loss_of_a_token(kind):
    batch = tokens()
    weights = torch.rand(6, 7, dtype=D) * batch["loss_mask"]
    weighted, _ = run(batch | {"importance_weights": weights}, kind)
    scaled, _ = run(batch | {"advantages": batch["advantages"] * weights}, kind)
    assert weighted.item() == pytest.approx(scaled.item(), rel=1e-12)


def test_dual_clip_bounds_the_ratio_of_a_sequence():
    batch = {
        "logprobs": torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
        "old_logprobs": torch.tensor([[-3.0, 0.0], [0.0, 0.0]]),
        "advantages": torch.full((2, 2), -1.0),
    }
    loss, _ = run(batch, "gspo", clip_ratio_c=3.0)
    assert loss.item() == pytest.approx((3.0 + 1.0) / 2), "s is e², which c bounds"


def test_each_surrogate_has_a_range_of_its_own():
    assert clip_range("ppo", 0.2, None, None) == (0.2, 0.2)
    assert clip_range("ppo", 0.2, None, 0.28) == (0.2, 0.28)
    assert clip_range("gspo", 0.2, None, None) == (3e-4, 4e-4)
    assert clip_range("cispo", 0.2, None, None) == (1.0, 4.0)
    assert clip_range("cispo", 0.2, 0.5, 2.0) == (0.5, 2.0)


def test_gspo_must_know_the_sequences():
    flat = {name: torch.zeros(5) for name in ("logprobs", "old_logprobs", "advantages")}
    with pytest.raises(ValueError, match="pass sequence_ids"):
        run(flat, "gspo")
