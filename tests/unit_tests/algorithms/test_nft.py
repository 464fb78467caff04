"""DiffusionNFT, beside an explicit loop; what its gradients are, and the limits of beta."""

from __future__ import annotations

import math

import pytest
import torch

from rlinf.algorithms.aggregation import LossNorm
from rlinf.algorithms.nft import nft_loss, optimality_of

N, DRAWS, CHUNKS, WIDTH = 5, 3, 4, 2


def example(seed=0):
    torch.manual_seed(seed)
    shape = N, DRAWS, CHUNKS, WIDTH
    mask = torch.rand(N, CHUNKS) < 0.7
    mask[0, 0] = True
    return {
        "velocity": torch.randn(shape, dtype=torch.float64, requires_grad=True),
        "old_velocity": torch.randn(shape, dtype=torch.float64),
        "noise": torch.randn(shape, dtype=torch.float64),
        "actions": torch.randn(N, CHUNKS, WIDTH, dtype=torch.float64),
        "time": torch.rand(N, DRAWS, dtype=torch.float64) * 0.9 + 0.05,
        "optimality": torch.rand(N, 1, dtype=torch.float64),
        "loss_mask": mask,
    }


def weight_of(kind, t, missed):
    if kind == "adaptive":
        return 1.0 / (sum(map(abs, missed)) / len(missed))
    return {"constant": 1.0, "t": t, "1-t": 1 - t, "inv_t2": t**-2}[kind]


def slow(given, beta, form, dpo_beta, kind):
    """Numbers of Python, one after the other; returns the loss and its gradient."""
    v, old, z, a = (given[k].tolist() for k in ("velocity", "old_velocity", "noise", "actions"))
    gradient = torch.zeros(N, DRAWS, CHUNKS, WIDTH, dtype=torch.float64)
    total, count = 0.0, int(given["loss_mask"].sum()) * DRAWS
    for n in range(N):
        r = float(given["optimality"][n])
        for k in range(DRAWS):
            t = float(given["time"][n, k])
            every = {1: [], -1: []}
            for side, found in every.items():
                for c in range(CHUNKS):
                    for i in range(WIDTH):
                        own = old[n][k][c][i] + side * beta * (v[n][k][c][i] - old[n][k][c][i])
                        x = t * z[n][k][c][i] + (1 - t) * a[n][c][i]
                        found.append(x - t * own - a[n][c][i])
            w = {side: weight_of(kind, t, found) for side, found in every.items()}
            for c in range(CHUNKS):
                if not given["loss_mask"][n, c]:
                    continue
                at = range(c * WIDTH, (c + 1) * WIDTH)
                plus, minus = (
                    w[side] * sum(every[side][j] ** 2 for j in at) / WIDTH for side in (1, -1)
                )
                if form == "mse":
                    total += (r * plus + (1 - r) * minus) / beta / count
                    of_plus, of_minus = r / beta, (1 - r) / beta
                else:
                    scale = 0.5 * dpo_beta * (2 * r - 1)
                    total += math.log1p(math.exp(scale * (plus - minus))) / count
                    of_plus = scale / (1 + math.exp(-scale * (plus - minus)))
                    of_minus = -of_plus
                for i, j in enumerate(at):
                    slope = of_plus * w[1] * 2 * every[1][j] * (-t * beta)
                    slope += of_minus * w[-1] * 2 * every[-1][j] * (t * beta)
                    gradient[n, k, c, i] = slope / WIDTH / count
    return total, gradient


@pytest.mark.parametrize("kind", ["constant", "t", "1-t", "inv_t2", "adaptive"])
@pytest.mark.parametrize(("form", "beta"), [("mse", 1.0), ("mse", 0.3), ("dpo", 0.5)])
def test_loss_and_gradients_are_those_of_the_loop(kind, form, beta):
    given = example()
    loss, metrics = nft_loss(**given, beta=beta, form=form, dpo_beta=2.0, weight=kind)
    loss.backward()
    expected, gradient = slow(given, beta, form, 2.0, kind)
    assert float(loss) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(given["velocity"].grad, gradient, rtol=1e-8, atol=1e-12)
    assert metrics["actor/loss"].value() == pytest.approx(expected, rel=1e-9)


def gradient_of(beta, optimality, start_at_old=False):
    given = example()
    if start_at_old:
        given["velocity"] = given["old_velocity"].clone().requires_grad_()
    given["optimality"] = torch.full((N, 1), optimality, dtype=torch.float64)
    nft_loss(**given, beta=beta)[0].backward()
    return given["velocity"].grad, given


def test_good_and_bad_actions_pull_in_opposite_directions_at_the_old_policy():
    good, _ = gradient_of(1.0, 1.0, start_at_old=True)
    bad, _ = gradient_of(1.0, 0.0, start_at_old=True)
    torch.testing.assert_close(good, -bad)
    neutral, _ = gradient_of(1.0, 0.5, start_at_old=True)
    assert float(neutral.abs().max()) < 1e-12 and float(good.abs().max()) > 0


def test_with_beta_one_and_good_actions_alone_it_is_flow_matching():
    found, given = gradient_of(1.0, 1.0)
    v = given["velocity"].detach().requires_grad_()
    errors = (v - (given["noise"] - given["actions"][:, None])).square().mean(-1).mean(1)
    errors[given["loss_mask"]].mean().backward()
    torch.testing.assert_close(found, v.grad)


def test_a_small_beta_leaves_the_linear_term_alone():
    """Then the gradient is that of the advantage at the old policy, wherever the new one is."""
    small, _ = gradient_of(1e-7, 0.8)
    at_old, _ = gradient_of(1.0, 0.8, start_at_old=True)
    torch.testing.assert_close(small, at_old, rtol=1e-5, atol=1e-8)


def test_a_neutral_action_holds_the_policy_at_the_old_one():
    found, given = gradient_of(0.7, 0.5)
    away = (given["velocity"] - given["old_velocity"]).detach()
    counts = given["loss_mask"][:, None, :, None].expand_as(found)
    scale = 2 * 0.7 / WIDTH / (int(given["loss_mask"].sum()) * DRAWS)
    torch.testing.assert_close(found[counts], (scale * away)[counts])


def test_micro_batches_add_up():
    given = example()
    norm = LossNorm.count(given["loss_mask"])
    whole, _ = nft_loss(**given, beta=1.0)
    parts = [slice(0, 2), slice(2, N)]
    shares = [
        nft_loss(**{k: v[p] for k, v in given.items()}, beta=1.0, norm=norm)[0] for p in parts
    ]
    torch.testing.assert_close(sum(shares), whole)


def test_advantages_become_optimality():
    advantages = torch.tensor([-9.0, -2.0, -1.0, 0.0, 0.5, 2.0, 7.0])
    expected = torch.tensor([0.0, 0.0, 0.25, 0.5, 0.625, 1.0, 1.0])
    torch.testing.assert_close(optimality_of(advantages, 2.0), expected)


def test_episodes_of_different_lengths_count_alike():
    """The loss is the mean over episodes of the mean over the actions of each."""
    given = example()
    episodes = [slice(0, 1), slice(1, N)]
    mask = given["loss_mask"]
    lengths = torch.cat([mask[e].sum().expand(mask[e].shape) for e in episodes])
    kwargs = {"beta": 1.0, "loss_agg_func": "seq-mean-token-mean"}
    loss, metrics = nft_loss(**given, loss_mask_sum=lengths, **kwargs)
    alone = [nft_loss(**{k: v[e] for k, v in given.items()}, beta=1.0)[0] for e in episodes]
    torch.testing.assert_close(loss, sum(alone) / len(episodes))
    assert metrics["actor/loss"].value() == pytest.approx(float(loss))
    norm = LossNorm.count(mask, loss_mask_sum=lengths)
    shares = [
        nft_loss(
            **{k: v[e] for k, v in given.items()}, loss_mask_sum=lengths[e], norm=norm, **kwargs
        )[0]
        for e in (slice(0, 2), slice(2, N))
    ]
    torch.testing.assert_close(sum(shares), loss)
