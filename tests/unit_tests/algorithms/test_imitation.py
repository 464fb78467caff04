"""The loss of behaviour cloning, beside a slow one, and what must not change it."""

from __future__ import annotations

import pytest
import torch

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.imitation import cloning_loss, given_loss


def example(seed=0, n=7, chunks=3, dim=2):
    torch.manual_seed(seed)
    mask = torch.rand(n, chunks) < 0.7
    mask[0, 0] = True
    return {
        "errors": torch.randn(n, chunks * dim),
        "logprobs": torch.randn(n, chunks * dim),
        "loss_mask": mask,
    }


def slow(errors, logprobs, loss_mask, use_logprobs):
    total, count = 0.0, 0
    for row in range(len(errors)):
        for chunk in range(loss_mask.shape[1]):
            if loss_mask[row, chunk]:
                for number in range(2):
                    at = row, 2 * chunk + number
                    total += -logprobs[at] if use_logprobs else errors[at] ** 2
                    count += 1
    return total / count


@pytest.mark.parametrize("use_logprobs", [False, True])
def test_it_is_the_mean_over_valid_actions(use_logprobs):
    given = example()
    loss, metrics = cloning_loss(**given, use_logprobs=use_logprobs)
    assert float(loss) == pytest.approx(float(slow(**given, use_logprobs=use_logprobs)))
    assert metrics["actor/loss"].value() == pytest.approx(float(loss))


def test_what_is_masked_does_not_matter():
    given = example()
    loss, _ = cloning_loss(**given)
    hidden = ~given["loss_mask"].repeat_interleave(2, 1)
    given["errors"] = given["errors"].masked_fill(hidden, torch.nan)
    given["logprobs"] = given["logprobs"].masked_fill(hidden, torch.inf)
    assert torch.equal(cloning_loss(**given)[0], loss)


def test_micro_batches_add_up():
    given = example()
    norm = LossNorm.count(given["loss_mask"])
    parts = [
        cloning_loss(**{k: v[rows] for k, v in given.items()}, norm=norm)[0]
        for rows in (slice(0, 2), slice(2, 7))
    ]
    assert float(sum(parts)) == pytest.approx(float(cloning_loss(**given)[0]))


def test_losses_of_a_policy_are_averaged_over_valid_actions():
    losses = torch.tensor([[1.0, 3.0, 5.0, 7.0], [2.0, 4.0, torch.nan, 9.0]])
    mask = torch.tensor([[True, True], [True, False]])
    loss, metrics = given_loss(losses, mask)
    assert float(loss) == metrics["actor/loss"].value() == pytest.approx(22.0 / 6)
