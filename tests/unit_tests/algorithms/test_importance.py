"""Weights of samples that an engine drew with other probabilities, against their formulas."""

import math

import pytest
import torch

from rlinf.algorithms.importance import mismatch_weights

D = torch.float64
LENGTHS = [3, 1, 7, 5, 2, 4, 6, 2, 8, 3, 9, 4]
KINDS = {
    "truncated": {"level": "token", "mode": "truncate", "low": 0.0, "high": 1.3},
    "truncated on both sides": {"level": "token", "mode": "truncate", "low": 0.8, "high": 1.3},
    "icepop": {"level": "token", "mode": "mask", "low": 0.7, "high": 1.4},
    "truncated responses": {"level": "sequence", "mode": "truncate", "low": 0.0, "high": 1.1},
    "masked responses": {"level": "sequence", "mode": "mask", "low": 0.5, "high": 1.5},
    "geometric": {"level": "geometric", "mode": "mask", "low": 0.85, "high": 1.2},
}


def draw(seed=0):
    """Trainer's and engine's log-probabilities in rows, what counts, and what is no padding."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    engine = torch.randn(*shape, generator=g, dtype=D) - 2
    trainer = engine + 0.3 * torch.randn(*shape, generator=g, dtype=D)
    there = torch.arange(shape[1]) < torch.tensor(LENGTHS).unsqueeze(1)
    mask = there & (torch.rand(*shape, generator=g) < 0.9)
    mask[1] = False
    return trainer, engine, mask, there


def expected(trainer, engine, mask, level, mode, low, high):
    """One row after the other, as the formulas say."""
    weights, outside = [], []
    for t, e, m in zip(trainer.tolist(), engine.tolist(), mask.tolist(), strict=True):
        logs = [a - b for a, b in zip(t, e, strict=True)]
        valid = [x for x, counts in zip(logs, m, strict=True) if counts]
        for x, counts in zip(logs, m, strict=True):
            if level == "sequence":
                ratio = math.prod(math.exp(v) for v in valid)
            elif level == "geometric":
                ratio = math.prod(math.exp(v) for v in valid) ** (1 / max(1, len(valid)))
            else:
                ratio = math.exp(x)
            inside = low <= ratio <= high
            if mode == "truncate":
                weight = max(low, min(high, ratio))
            elif level == "geometric":
                weight = 1.0 if inside else 0.0
            else:
                weight = ratio if inside else 0.0
            weights.append(weight if counts else 1.0)
            outside.append(counts and not inside)
    return torch.tensor(weights, dtype=D).view(mask.shape), torch.tensor(outside).view(mask.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_weights_match_the_loop(kind, seed):
    trainer, engine, mask, _ = draw(seed)
    weights, outside = mismatch_weights(trainer, engine, mask=mask, **KINDS[kind])
    slow_weights, slow_outside = expected(trainer, engine, mask, **KINDS[kind])
    torch.testing.assert_close(weights, slow_weights)
    assert torch.equal(outside, slow_outside)
    assert slow_outside.any() and (mask & ~slow_outside).any(), "both sides are tried"


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_end_to_end_and_parts_of_a_batch_have_the_same_weights(kind):
    trainer, engine, mask, there = draw(4)
    whole, _ = mismatch_weights(trainer, engine, mask=mask, **KINDS[kind])
    for rows in (list(range(12)), [2, 0], [1], []):
        lengths = torch.tensor(LENGTHS)[rows]
        ids = torch.arange(len(rows)).repeat_interleave(lengths)
        valid = there[rows]
        flat = (x[rows][valid] for x in (trainer, engine))
        weights, _ = mismatch_weights(
            *flat, mask=mask[rows][valid], sequence_ids=ids, **KINDS[kind]
        )
        torch.testing.assert_close(weights, whole[rows][valid])


@pytest.mark.parametrize("kind", KINDS)
def test_masked_tokens_may_hold_anything(kind):
    trainer, engine, mask, _ = draw(5)
    weights, outside = mismatch_weights(trainer, engine, mask=mask, **KINDS[kind])
    for garbage in (torch.nan, torch.inf, -1e30):
        dirty = trainer.masked_fill(~mask, garbage)
        other = mismatch_weights(dirty, engine, mask=mask, **KINDS[kind])
        assert torch.equal(other[0], weights) and torch.equal(other[1], outside)


def test_the_default_truncates_tokens_at_two():
    trainer, engine = torch.tensor([[0.0, -1.0, -3.0]]), torch.tensor([[-1.0, -1.5, -1.0]])
    weights, outside = mismatch_weights(trainer, engine)
    torch.testing.assert_close(weights, torch.tensor([[2.0, math.exp(0.5), math.exp(-2.0)]]))
    assert outside.tolist() == [[True, False, False]]


def test_weights_have_no_gradient():
    trainer = torch.zeros(1, 2, requires_grad=True)
    assert not mismatch_weights(trainer, torch.ones(1, 2))[0].requires_grad


def test_weights_correct_for_another_engine():
    """E_engine[w f] = E_trainer[f] where nothing is truncated: exact over a small vocabulary."""
    g = torch.Generator().manual_seed(4)
    trainer, engine = torch.randn(2, 6, generator=g, dtype=D).softmax(-1).unbind()
    value = torch.randn(6, generator=g, dtype=D)
    weights, _ = mismatch_weights(trainer.log(), engine.log(), high=1e9)
    assert (engine * weights * value).sum().item() == pytest.approx((trainer * value).sum().item())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"level": "word"}, "level is 'word'; allowed: token, sequence, geometric"),
        ({"mode": "clip"}, "mode is 'clip'; allowed: truncate, mask"),
        ({"level": "geometric"}, "drops sequences and weighs none; set mismatch.mode to mask"),
    ],
)
def test_settings_are_checked(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        mismatch_weights(torch.zeros(1, 1), torch.zeros(1, 1), **settings)
