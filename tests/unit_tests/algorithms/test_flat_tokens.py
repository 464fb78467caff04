"""Tokens of all sequences end to end have the loss of the same tokens in padded rows."""

import pytest
import torch

from rlinf.algorithms.aggregation import MODES, LossNorm
from rlinf.algorithms.metrics import reduce_metrics
from rlinf.algorithms.registry import policy_loss
from tests.unit_tests.algorithms.slow import aggregate, surrogate

D = torch.float64
LENGTHS = torch.tensor([3, 0, 7, 1, 5])
LOSSES = ["actor", "decoupled_actor", "actor_critic", "decoupled_actor_critic"]
SURROGATES = ["ppo", "gspo", "cispo"]


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
    return {
        **{k: v[rows] for k, v in batch.items()},
        "loss_mask_sum": counts[rows],
        "sequence_ids": torch.arange(len(LENGTHS)).repeat_interleave(LENGTHS),
    }


def compute(batch, loss_type, mode, norm=None, policy_loss_of="ppo"):
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
        policy_loss=policy_loss_of,
        **parts,
    )
    loss.backward()
    return loss.item(), parts["logprobs"].grad, reduce_metrics(metrics)


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SURROGATES)
def test_flat_is_padded(loss_type, mode, kind):
    rows = padded()
    loss, gradient, metrics = compute(rows, loss_type, mode, policy_loss_of=kind)
    other, flat_gradient, flat_metrics = compute(flat(rows), loss_type, mode, policy_loss_of=kind)
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


def test_an_aggregation_by_a_constant_needs_it():
    batch = flat(padded())
    with pytest.raises(ValueError, match="loss_length is None; set it"):
        policy_loss(
            loss_type="actor",
            loss_agg_func="seq-mean-token-sum-norm",
            **{k: batch[k] for k in ("logprobs", "old_logprobs", "advantages")},
        )
