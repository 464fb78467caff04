"""Policy losses against slow references."""

import math

import pytest
import torch

from rlinf.algorithms.losses import compute_decoupled_actor_loss
from rlinf.algorithms.metrics import reduce_metrics
from rlinf.algorithms.registry import policy_loss
from tests.unit_tests.algorithms.slow import (
    LENGTH,
    aggregate,
    huber,
    rows_of,
    surrogate,
    value_term,
)

D = torch.float64
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def tokens(seed=0, rows=5, length=7, spread=0.4):
    g = torch.Generator().manual_seed(seed)

    def draw():
        return torch.randn(rows, length, generator=g, dtype=D)

    old = draw() - 2
    mask = torch.rand(rows, length, generator=g) < 0.6
    mask[1] = False
    old_values = draw()
    return {
        "logprobs": (old + spread * draw()).requires_grad_(),
        "old_logprobs": old,
        "advantages": draw(),
        "loss_mask": mask,
        "entropy": draw().exp().requires_grad_(),
        "ref_logprobs": old + spread * draw(),
        "values": (old_values + spread * draw()).requires_grad_(),
        "old_values": old_values,
        "returns": draw() * 3,
        "loss_length": LENGTH,
    }


def item(batch, name):
    return lambda b, t: batch[name][b, t].item()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dual", [None, 1.5])
def test_actor_matches_the_loop(mode, dual):
    batch = tokens()
    loss, metrics = policy_loss(
        loss_type="actor",
        loss_agg_func=mode,
        clip_ratio_low=0.1,
        clip_ratio_high=0.3,
        clip_ratio_c=dual,
        entropy_bonus=0.02,
        kl_beta=0.1,
        kl_penalty_type="k3",
        **batch,
    )
    logp, old, adv = (item(batch, name) for name in ("logprobs", "old_logprobs", "advantages"))
    ref, mask = item(batch, "ref_logprobs"), batch["loss_mask"]

    def k3(b, t):
        d = ref(b, t) - logp(b, t)
        return math.exp(d) - d - 1

    def policy(b, t):
        return surrogate(logp(b, t), old(b, t), adv(b, t), 0.1, 0.3, dual)

    terms = [aggregate(rows_of(mask, f), mode) for f in (policy, item(batch, "entropy"), k3)]
    assert loss.item() == pytest.approx(terms[0] - 0.02 * terms[1] + 0.1 * terms[2], rel=1e-9)
    shown = reduce_metrics(metrics)
    assert shown["actor/policy_loss"] == pytest.approx(terms[0], rel=1e-9)
    assert shown["actor/entropy"] == pytest.approx(terms[1], rel=1e-9)
    assert shown["actor/kl_ref"] == pytest.approx(terms[2], rel=1e-9)


def test_actor_metrics_match_the_loop():
    batch = tokens(spread=0.6)
    _, metrics = policy_loss(loss_type="actor", clip_ratio_c=1.3, **batch)
    logp, old, adv = (item(batch, name) for name in ("logprobs", "old_logprobs", "advantages"))

    def mean(term):
        return aggregate(rows_of(batch["loss_mask"], term), "token-mean")

    def ratio(b, t):
        return math.exp(logp(b, t) - old(b, t))

    def clipped(b, t):
        return (adv(b, t) > 0 and ratio(b, t) > 1.2) or (adv(b, t) < 0 and ratio(b, t) < 0.8)

    shown = reduce_metrics(metrics)
    assert 0 < shown["actor/clip_fraction"] == pytest.approx(mean(clipped))
    dual = mean(lambda b, t: adv(b, t) < 0 and ratio(b, t) > 1.3)
    assert 0 < shown["actor/dual_clip_fraction"] == pytest.approx(dual)
    assert shown["actor/ratio"] == pytest.approx(mean(ratio))
    assert shown["actor/ratio_max"] == max(max(r) for r in rows_of(batch["loss_mask"], ratio) if r)
    kl = mean(lambda b, t: ratio(b, t) - 1 - (logp(b, t) - old(b, t)))
    assert shown["actor/approx_kl"] == pytest.approx(kl)


def test_the_log_ratio_can_be_bounded():
    batch = {
        "logprobs": torch.tensor([0.0, 0.0]),
        "old_logprobs": torch.tensor([-200.0, 200.0]),
        "advantages": torch.tensor([-1.0, -1.0]),
    }
    loss, _ = policy_loss(
        loss_type="actor", clip_log_ratio_min=-1.0, clip_log_ratio_max=2.0, **batch
    )
    assert loss.item() == pytest.approx((math.exp(2) + 0.8) / 2)


def test_kl_counts_once_in_loss_or_reward():
    batch = tokens()
    plain, _ = policy_loss(loss_type="actor", **batch)
    in_reward, metrics = policy_loss(loss_type="actor", kl_beta=1.0, kl_in="reward", **batch)
    in_loss, _ = policy_loss(loss_type="actor", kl_beta=1.0, **batch)
    assert plain == in_reward and in_loss > plain
    assert "actor/kl_ref" in metrics


def test_k1_in_the_reward_is_fine():
    policy_loss(loss_type="actor", kl_beta=1.0, kl_in="reward", kl_penalty_type="k1", **tokens())


@pytest.mark.parametrize("mode", MODES)
def test_actor_critic_matches_the_loop(mode):
    batch = tokens()
    actor, _ = policy_loss(loss_type="actor", loss_agg_func=mode, **batch)
    settings = {"loss_agg_func": mode, "value_clip": 0.3, "huber_delta": 1.5}
    loss, metrics = policy_loss(loss_type="actor_critic", value_loss_coef=0.7, **settings, **batch)
    value, target, old = (item(batch, name) for name in ("values", "returns", "old_values"))

    def term(b, t):
        return value_term(value(b, t), target(b, t), old(b, t), 0.3, 1.5)

    expected = aggregate(rows_of(batch["loss_mask"], term), mode)
    assert loss.item() == pytest.approx(actor.item() + 0.7 * expected, rel=1e-9)
    shown = reduce_metrics(metrics)
    assert shown["critic/value_loss"] == pytest.approx(expected, rel=1e-9)
    moved = rows_of(batch["loss_mask"], lambda b, t: abs(value(b, t) - old(b, t)) > 0.3)
    assert 0 < shown["critic/value_clip_fraction"] == aggregate(moved, "token-mean") < 1
    valid = batch["loss_mask"]
    returns = batch["returns"][valid]
    error = (batch["returns"] - batch["values"])[valid]
    explained = 1 - (error.var() / returns.var()).item()
    assert shown["critic/explained_variance"] == pytest.approx(explained)


def test_values_need_not_be_clipped_and_warmup_trains_them_only():
    batch = tokens()
    del batch["old_values"]
    loss, metrics = policy_loss(
        loss_type="actor_critic", value_clip=None, critic_warmup=True, **batch
    )
    rows = rows_of(
        batch["loss_mask"],
        lambda b, t: huber((batch["returns"] - batch["values"])[b, t].item(), 10.0),
    )
    assert loss.item() == pytest.approx(aggregate(rows, "token-mean"))
    loss.backward()
    assert batch["logprobs"].grad is None and batch["values"].grad is not None
    assert not any(name.startswith("actor/") for name in metrics)


def decoupled_rows(batch, proximal, threshold):
    def term(b, t):
        logp, old = batch["logprobs"][b, t].item(), batch["old_logprobs"][b, t].item()
        weight = math.exp(proximal(b, t) - old)
        if threshold is not None and weight > threshold:
            return 0.0
        return weight * surrogate(logp, proximal(b, t), batch["advantages"][b, t].item(), dual=3.0)

    return rows_of(batch["loss_mask"], term)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threshold", [None, 1.2])
def test_decoupled_with_proximal_logprobs_matches_the_loop(mode, threshold):
    batch = tokens(spread=0.6)
    batch["proximal_logprobs"] = batch["old_logprobs"] + 0.5 * torch.randn(5, 7, dtype=D)
    loss, metrics = compute_decoupled_actor_loss(
        clip_ratio_c=3.0,
        loss_agg_func=mode,
        behave_weight_threshold=threshold,
        **{k: v for k, v in batch.items() if k not in ("values", "old_values", "returns")},
    )
    rows = decoupled_rows(batch, item(batch, "proximal_logprobs"), threshold)
    assert loss.item() == pytest.approx(aggregate(rows, mode), rel=1e-9)
    shown = reduce_metrics(metrics)
    assert ("actor/behave_clip_fraction" in shown) == (threshold is not None)
    if threshold is not None:
        assert 0 < shown["actor/behave_clip_fraction"] < 1


def test_decoupled_interpolates_by_age():
    batch = tokens(spread=0.6)
    batch["versions"] = torch.tensor([9, 9, 6, 2, -1])
    loss, metrics = policy_loss(
        loss_type="decoupled_actor_critic",
        current_version=10,
        behave_weight_threshold=1.5,
        clip_ratio_c=3.0,
        value_loss_coef=0.0,
        **batch,
    )
    alpha = [0.0, 0.0, 3 / 4, 7 / 8, 0.0]

    def proximal(b, t):
        logp, old = batch["logprobs"][b, t].item(), batch["old_logprobs"][b, t].item()
        return old + alpha[b] * (logp - old)

    rows = decoupled_rows(batch, proximal, 1.5)
    assert loss.item() == pytest.approx(aggregate(rows, "token-mean"), rel=1e-9)
    shown = reduce_metrics(metrics)
    age = rows_of(batch["loss_mask"], lambda b, t: [0, 0, 3, 7, 0][b])
    assert shown["actor/policy_age"] == pytest.approx(aggregate(age, "token-mean"))


def test_decoupled_is_ppo_on_fresh_samples():
    batch = tokens()
    plain, _ = policy_loss(loss_type="actor_critic", **batch)
    fresh, _ = policy_loss(
        loss_type="decoupled_actor_critic",
        versions=torch.full((5,), 3),
        current_version=4,
        behave_weight_threshold=2.0,
        **batch,
    )
    assert fresh.item() == pytest.approx(plain.item(), rel=1e-12)


@pytest.mark.parametrize(
    ("loss_type", "kind"),
    [
        ("actor", "ppo"),
        ("actor_critic", "ppo"),
        ("decoupled_actor_critic", "ppo"),
        ("actor", "gspo"),
        ("actor", "cispo"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_masked_entries_may_hold_anything(loss_type, kind, mode):
    def run(garbage):
        batch = tokens()
        hidden = ~batch["loss_mask"]
        for name, tensor in batch.items():
            if name not in ("loss_mask", "loss_length"):
                batch[name] = tensor.detach().masked_fill(hidden, garbage)
        learned = [batch[name].requires_grad_() for name in ("logprobs", "entropy", "values")]
        loss, metrics = policy_loss(
            loss_type=loss_type,
            loss_agg_func=mode,
            policy_loss=kind,
            entropy_bonus=0.1,
            kl_beta=0.1,
            versions=torch.full((5,), 2),
            current_version=5,
            **batch,
        )
        grads = torch.autograd.grad(loss, learned, allow_unused=True)
        return loss, [g for g in grads if g is not None], reduce_metrics(metrics)

    loss, grads, shown = run(0.5)
    for garbage in (torch.nan, torch.inf, -1e30):
        other, other_grads, other_shown = run(garbage)
        assert other == loss and other_shown == shown
        assert all(torch.equal(a, b) for a, b in zip(grads, other_grads, strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_without_valid_entries_is_zero(mode):
    batch = tokens()
    batch["loss_mask"] = torch.zeros_like(batch["loss_mask"])
    loss, metrics = policy_loss(loss_type="actor_critic", loss_agg_func=mode, **batch)
    loss.backward()
    assert loss.item() == 0.0 and batch["logprobs"].grad.abs().max() == 0
    assert reduce_metrics(metrics) == {}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"loss_agg_func": "mean"}, "loss_agg_func is 'mean'; allowed"),
        ({"returns": None}, "adv_type does not give; use gae"),
        ({"old_values": None}, "value_clip needs old_values"),
        ({"entropy": None, "entropy_bonus": 0.1}, "needs the entropy"),
        ({"ref_logprobs": None, "kl_beta": 0.1}, "needs ref_logprobs"),
        ({"kl_beta": 0.1, "kl_penalty_type": "k1"}, "'k1' has no gradient on average.*low_var_kl"),
        ({"kl_beta": 0.1, "kl_penalty_type": "kl"}, "'kl' has no gradient on average"),
        ({"policy_loss": "gppo"}, "policy_loss is 'gppo'; allowed: cispo, gspo, ppo"),
        ({"policy_loss": "cispo", "clip_ratio_c": 3.0}, "clip_ratio_c is 3.0, but cispo"),
        ({"logprobs": torch.zeros(5, 7, dtype=torch.bfloat16)}, "logprobs is bfloat16, too"),
        ({"logprobs": torch.zeros(1, 7)}, r"logprobs has the shape \(1, 7\).*batch comes first"),
        ({"returns": torch.zeros(5, 6)}, r"returns has the shape \(5, 6\).*loss_mask, \(5, 7\)"),
    ],
)
def test_bad_input_is_named(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        policy_loss(loss_type="actor_critic", **(tokens() | change))


def test_decoupled_needs_something_to_interpolate_from():
    with pytest.raises(ValueError, match="needs proximal_logprobs, or versions"):
        policy_loss(loss_type="decoupled_actor_critic", **tokens())
