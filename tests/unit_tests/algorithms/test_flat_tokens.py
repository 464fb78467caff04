"""Tokens of all sequences end to end have the loss of the same tokens in padded rows."""

import math

import pytest
import torch

from rlinf.algorithms.aggregation import MODES, LossNorm
from rlinf.algorithms.importance import truncated_importance_weights
from rlinf.algorithms.metrics import reduce_metrics
from rlinf.algorithms.registry import policy_loss
from tests.unit_tests.algorithms.slow import aggregate, surrogate

D = torch.float64
LENGTHS = torch.tensor([3, 0, 7, 1, 5])
LOSSES = ["actor", "decoupled_actor", "actor_critic", "decoupled_actor_critic"]


def padded(seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), int(LENGTHS.max()))

    def draw():
        return torch.randn(*shape, generator=g, dtype=D)

    old = draw() - 2
    return {
        "logprobs": old + 0.3 * draw(),
        "old_logprobs": old,
        "proximal_logprobs": old + 0.2 * draw(),
        "ref_logprobs": old + 0.2 * draw(),
        "advantages": draw(),
        "values": draw(),
        "old_values": draw(),
        "returns": draw(),
        "entropy": draw().exp(),
        "loss_mask": torch.arange(shape[1]) < LENGTHS.unsqueeze(1),
    }


def flat(batch):
    rows = batch["loss_mask"]
    counts = rows.sum(1, keepdim=True).expand_as(rows)
    return {**{k: v[rows] for k, v in batch.items()}, "loss_mask_sum": counts[rows]}


def compute(batch, loss_type, mode, norm=None):
    parts = {
        name: tensor.clone().requires_grad_() if name in ("logprobs", "values") else tensor
        for name, tensor in batch.items()
    }
    loss, metrics = policy_loss(
        loss_type=loss_type,
        loss_agg_func=mode,
        loss_length=9,
        kl_beta=0.2,
        entropy_bonus=0.1,
        clip_ratio_high=0.28,
        behave_weight_threshold=1.2,
        norm=norm,
        **parts,
    )
    loss.backward()
    return loss.item(), parts["logprobs"].grad, reduce_metrics(metrics)


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_flat_is_padded(loss_type, mode):
    rows = padded()
    loss, gradient, metrics = compute(rows, loss_type, mode)
    other, flat_gradient, flat_metrics = compute(flat(rows), loss_type, mode)
    assert other == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(flat_gradient, gradient[rows["loss_mask"]])
    assert flat_metrics == pytest.approx(metrics, rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_flat_tokens_match_the_loop(mode):
    batch = flat(padded(1))
    loss, _ = policy_loss(
        loss_type="actor",
        loss_agg_func=mode,
        loss_length=11,
        clip_ratio_low=0.1,
        clip_ratio_high=0.28,
        **{k: batch[k] for k in ("logprobs", "old_logprobs", "advantages", "loss_mask")},
        loss_mask_sum=batch["loss_mask_sum"],
    )
    rows, place = [], 0
    for length in LENGTHS.tolist():
        terms = [
            surrogate(
                batch["logprobs"][i].item(),
                batch["old_logprobs"][i].item(),
                batch["advantages"][i].item(),
                0.1,
                0.28,
            )
            for i in range(place, place + length)
        ]
        rows.append(terms)
        place += length
    assert loss.item() == pytest.approx(aggregate(rows, mode), rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_over_assumed_counts_is_scaled_to_the_actual_ones(mode):
    batch = flat(padded(2))
    actual = LossNorm.count(batch["loss_mask"], loss_mask_sum=batch["loss_mask_sum"])
    assert (actual.entries, actual.sequences) == (16.0, 4.0)
    loss, gradient, _ = compute(batch, "actor", mode, actual)
    assumed = LossNorm(7.0, 3.0)
    other, scaled, _ = compute(batch, "actor", mode, assumed)
    factor = assumed.factor_to(actual, mode)
    assert other * factor == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(scaled * factor, gradient)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_of_flat_tokens(level):
    rows = padded(3)
    mask = rows["loss_mask"].clone()
    mask[2, 1] = False
    trainer, engine = rows["logprobs"], rows["old_logprobs"]
    of_rows = truncated_importance_weights(trainer, engine, clip=1.3, level=level, mask=mask)
    valid = rows["loss_mask"]
    ids = torch.arange(len(LENGTHS)).repeat_interleave(LENGTHS)
    of_flat = truncated_importance_weights(
        trainer[valid],
        engine[valid],
        clip=1.3,
        level=level,
        mask=mask[valid],
        sequence_ids=ids,
    )
    torch.testing.assert_close(of_flat, of_rows[valid])
    for row, length in enumerate(LENGTHS.tolist()):
        ratios = [
            (trainer[row, t] - engine[row, t]).item() if mask[row, t] else 0.0
            for t in range(length)
        ]
        for t in range(length):
            log_ratio = sum(ratios) if level == "sequence" else ratios[t]
            expected = min(math.exp(log_ratio), 1.3) if mask[row, t] else 1.0
            assert of_rows[row, t].item() == pytest.approx(expected)


def test_weights_correct_for_another_engine():
    """E_engine[w f] = E_trainer[f] where nothing is truncated: exact over a small vocabulary."""
    g = torch.Generator().manual_seed(4)
    trainer, engine = torch.randn(2, 6, generator=g, dtype=D).softmax(-1).unbind()
    value = torch.randn(6, generator=g, dtype=D)
    weights = truncated_importance_weights(trainer.log(), engine.log(), clip=1e9)
    assert (engine * weights * value).sum().item() == pytest.approx((trainer * value).sum().item())


def test_an_aggregation_by_a_constant_needs_it():
    batch = flat(padded())
    with pytest.raises(ValueError, match="loss_length is None; set it"):
        policy_loss(
            loss_type="actor",
            loss_agg_func="seq-mean-token-sum-norm",
            **{k: batch[k] for k in ("logprobs", "old_logprobs", "advantages")},
        )
