"""The learner of responses: one update, whatever the micro-batches, layouts and moments."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from rlinf.models.causal_lm.layout import Sequences
from tests.unit_tests.workers.actor.reasoning import (
    CRITIC,
    GAE,
    MODEL,
    distance,
    learn,
    make_cfg,
    make_groups,
    make_learner,
    make_model,
    weights,
)


def train(changes=None, steps=2):
    """Some batches; returns the metrics of the last update, and the weights."""
    learner = make_learner(make_cfg(changes))
    for step in range(steps):
        groups = make_groups(make_model(learner.cfg.actor.model), seed=step, version=step)
        _, metrics = learn(learner, groups)
    return metrics, weights(learner)


SAME = {
    "sequences": {"actor.micro_batch_size": 2},
    "tokens": {"runner.enable_dynamic_batch_size": True, "runner.max_tokens_per_mbs": 33},
    "end to end": {
        "actor.model": {**MODEL, "sequence_layout": "packed"},
        "runner.enable_dynamic_batch_size": True,
        "runner.max_tokens_per_mbs": 40,
    },
    "chunks of logits": {"actor.model": {**MODEL, "logits_chunk_tokens": 5}},
    "checkpoints": {"actor.fsdp_config.gradient_checkpointing": True},
    "in order": {"algorithm.shuffle_rollout": False},
    "offload": {"actor.offload_reference": True, "actor.enable_offload": True},
}
RECIPES = {
    "grpo": {"algorithm.loss_agg_func": "seq-mean-token-mean", "algorithm.calculate_entropy": True},
    "dapo": {"algorithm.clip_ratio_high": 0.28, "algorithm.kl_beta": 0.1},
    "dr grpo": {
        "algorithm.loss_agg_func": "seq-mean-token-sum-norm",
        "algorithm.group_scale": "none",
    },
    "ppo": CRITIC,
    "corrected": {"algorithm.mismatch": {"level": "sequence"}},
    "gspo": {
        "algorithm.policy_loss": "gspo",
        "algorithm.update_epoch": 2,
        "algorithm.clip_ratio_high": 0.1,
        "algorithm.mismatch": {"level": "geometric", "mode": "mask", "low": 0.5, "high": 1.5},
    },
    "cispo": {
        "algorithm.policy_loss": "cispo",
        "algorithm.update_epoch": 2,
        "algorithm.mismatch": {"mode": "mask", "low": 0.5, "high": 1.5},
    },
}


@pytest.fixture(scope="module")
def plain():
    """What each recipe learns by default."""
    return {name: train(changes) for name, changes in RECIPES.items()}


PAIRS = [(recipe, way) for way in SAME for recipe in ("dapo", "ppo")]
PAIRS += [(recipe, "tokens") for recipe in ("grpo", "dr grpo", "corrected", "gspo", "cispo")]
PAIRS += [("gspo", "sequences"), ("gspo", "end to end")]


@pytest.mark.parametrize(("recipe", "way"), PAIRS)
def test_the_way_through_the_model_does_not_matter(plain, recipe, way):
    metrics, expected = plain[recipe]
    own_metrics, own = train({**RECIPES[recipe], **SAME[way]})
    assert distance(own, expected) < 2e-5
    assert own_metrics == pytest.approx(metrics, rel=1e-3, abs=1e-5)


def test_recipes_differ(plain):
    names = list(RECIPES)
    for one, other in zip(names, names[1:], strict=False):
        shared = {k: v for k, v in plain[one][1].items() if k in plain[other][1]}
        assert distance(shared, {k: plain[other][1][k] for k in shared}) > 1e-3, (one, other)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm.loss_agg_func": "seq-mean-token-mean", "algorithm.entropy_bonus": 0.1},
        {"algorithm.kl_beta": 0.1},
        {"algorithm.n_minibatches": 2, "algorithm.recompute_logprobs": False},
        {"algorithm.kl_beta": 0.1, "algorithm.kl_in": "reward"},
    ],
    ids=["tokens", "sequences", "reference", "two minibatches", "reference in the reward"],
)
def test_a_stream_of_groups_is_the_batch_that_they_make(changes):
    changes = {"algorithm.shuffle_rollout": False, **changes}
    one = make_learner(make_cfg(changes))
    other = make_learner(make_cfg({**changes, "actor.stream_groups": 1}))
    for step in range(2):
        groups = make_groups(one.engine.model, seed=step, version=step)
        of_batch, of_update = learn(one, groups)
        streamed = other.stream(iter(groups), len(groups))
        assert streamed[0] == pytest.approx(of_batch, rel=1e-4, abs=1e-6)
        of_update.pop("actor/stopped_by_kl")
        assert streamed[1] == pytest.approx(of_update, rel=1e-3, abs=1e-5)
    assert distance(weights(one), weights(other)) < 2e-5


def test_a_stream_trains_before_the_last_group_is_there():
    learner = make_learner(make_cfg({"actor.stream_groups": 2}))
    passes, trained = [], []
    learner.engine.model.register_forward_hook(lambda *_: passes.append(1))

    def arriving():
        for group in make_groups(make_model(learner.cfg.actor.model)):
            trained.append(len(passes))
            yield group

    learner.stream(arriving(), 4)
    assert trained == [0, 0, 1, 1] and learner.version == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm.update_epoch": 2}, "update_epoch is 2"),
        ({"algorithm.adv_type": "reinpp"}, "normalised over the whole batch"),
        ({**GAE, "algorithm.normalize_advantages": False}, "a value function is trained"),
        ({"algorithm.n_minibatches": 2}, "the old weights are gone"),
        ({"algorithm.target_kl": 0.1}, "target_kl looks at minibatches"),
    ],
)
def test_what_needs_the_whole_batch_is_not_streamed(changes, reason):
    learner = make_learner(make_cfg(changes))
    with pytest.raises(ValueError, match=reason):
        learner.stream(iter(()), 4)


# -- log-probabilities --------------------------------------------------------------------------


def test_the_only_update_needs_no_pass_for_old_log_probabilities(monkeypatch):
    changes = {"algorithm.mismatch": {"high": 1.5}}
    passes = []
    learner = make_learner(make_cfg(changes))
    learner.engine.model.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    groups = make_groups(make_model(learner.cfg.actor.model, seed=9))
    learn(learner, groups)
    assert passes == [True]
    # It is the update that a pass before it would have made.
    slow = make_learner(make_cfg(changes))
    monkeypatch.setattr(slow, "_single", False)
    learn(slow, groups)
    assert distance(weights(learner), weights(slow)) < 1e-6


def test_old_log_probabilities_are_those_before_all_updates():
    learner = make_learner(make_cfg({"algorithm.update_epoch": 3}))
    before = copy.deepcopy(learner.engine.model)
    groups = make_groups(make_model(learner.cfg.actor.model, seed=9))
    learner.prepare(groups)
    old = learner._samples.old_logprobs
    (expected,) = [
        torch.tensor([x for g in make_groups(before) for s in g.samples for x in s.logprobs])
    ]
    torch.testing.assert_close(old, expected, rtol=1e-4, atol=1e-5)
    metrics = learner.update()
    assert metrics["actor/ratio_max"] > 1.01 and metrics["actor/updates"] == 3


def test_the_engine_may_be_trusted():
    changes = {"algorithm.recompute_logprobs": False, "algorithm.update_epoch": 2}
    learner = make_learner(make_cfg(changes))
    groups = make_groups(make_model(learner.cfg.actor.model, seed=9))
    learner.prepare(groups)
    assert learner._samples.old_logprobs is None
    metrics = learner.update()
    assert "actor/rollout_gap" not in metrics and metrics["actor/approx_kl"] > 0.1


def test_the_gap_tells_stale_weights_from_rounding():
    learner = make_learner(make_cfg())
    _, first = learn(learner, make_groups(learner.engine.model, seed=1))
    assert first["actor/rollout_gap_max"] < 1e-5
    stale = make_groups(make_model(learner.cfg.actor.model), seed=2, version=1)
    _, second = learn(learner, stale)
    assert second["actor/rollout_gap"] > 1e-2
    honest = make_groups(make_model(learner.cfg.actor.model), seed=2, version=1)
    _, third = learn(learner, honest)
    assert "actor/rollout_gap" not in third, "samples of older weights are not compared"
    assert third["actor/policy_age"] == 1 and third["actor/rollout_kl"] > 0


def test_a_quiet_engine_is_found_out():
    groups = make_groups(make_model(make_cfg().actor.model))
    groups[1].samples[2] = replace(groups[1].samples[2], logprobs=[])
    with pytest.raises(ValueError, match="gave no log-probabilities"):
        make_learner(make_cfg()).prepare(groups)
    learn(make_learner(make_cfg({"rollout.return_logprobs": False})), groups)


def mismatched(section, version=0):
    """Trains once on what another model drew; returns ratios by response, metrics and weights."""
    learner = make_learner(make_cfg({} if section is None else {"algorithm.mismatch": section}))
    groups = make_groups(make_model(learner.cfg.actor.model, seed=5), version=version)
    own = make_groups(make_model(learner.cfg.actor.model))
    ratios = [
        [math.exp(a - b) for a, b in zip(t.logprobs, e.logprobs, strict=True)]
        for engine, trainer in zip(groups, own, strict=True)
        for e, t in zip(engine.samples, trainer.samples, strict=True)
    ]
    _, metrics = learn(learner, groups)
    return ratios, metrics, weights(learner)


def product(row):
    return [math.prod(row)] * len(row)


def geometric(row):
    return [math.prod(row) ** (1 / len(row))] * len(row)


@pytest.mark.parametrize(
    ("section", "of_row", "weigh"),
    [
        (None, list, lambda r: min(r, 2.0)),
        ({"high": 1.2}, list, lambda r: min(r, 1.2)),
        ({"mode": "mask", "low": 0.5, "high": 1.2}, list, lambda r: r * (0.5 <= r <= 1.2)),
        ({"level": "sequence", "high": 1.2}, product, lambda r: min(r, 1.2)),
        (
            {"level": "geometric", "mode": "mask", "low": 0.5, "high": 1.2},
            geometric,
            lambda r: 0.5 <= r <= 1.2,
        ),
    ],
    ids=["default", "truncated", "icepop", "sequence", "geometric"],
)
def test_what_another_policy_drew_is_weighed(section, of_row, weigh):
    ratios, metrics, _ = mismatched(section)
    found = [r for row in ratios for r in of_row(row)]
    mean = sum(map(weigh, found)) / len(found)
    assert metrics["actor/mismatch_weight"] == pytest.approx(mean, rel=1e-4)
    bounds = {"low": 0.0, "high": 2.0, **(section or {})}
    outside = [not bounds["low"] <= r <= bounds["high"] for r in found]
    share = sum(outside) / len(outside)
    assert metrics["actor/mismatch_outside"] == pytest.approx(share) and share > 0


def test_older_samples_are_corrected_by_default():
    """The ratio of the first update is 1 whatever drew the samples: only the weights tell."""
    _, _, default = mismatched(None)
    _, metrics, none = mismatched({"mode": "none"})
    assert "actor/mismatch_weight" not in metrics and metrics["actor/ratio"] == 1.0
    assert distance(default, none) > 1e-4
    _, _, written = mismatched({"level": "token", "mode": "truncate", "low": 0.0, "high": 2.0})
    assert distance(default, written) == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.recompute_logprobs": False},
        {"rollout.return_logprobs": False},
        {"algorithm.loss_type": "decoupled_actor"},
    ],
)
def test_by_default_nothing_is_corrected_twice_or_without_numbers(changes):
    learner = make_learner(make_cfg(changes))
    _, metrics = learn(learner, make_groups(make_model(learner.cfg.actor.model, seed=5)))
    assert "actor/mismatch_weight" not in metrics


def test_a_decoupled_loss_weighs_already():
    changes = {"algorithm.loss_type": "decoupled_actor", "algorithm.mismatch": {"high": 3.0}}
    with pytest.raises(ValueError, match="weighs samples by their age already"):
        make_cfg(changes)


@pytest.mark.parametrize("recomputed", [True, False])
def test_a_decoupled_loss_on_fresh_samples_is_the_plain_one(recomputed):
    keys = {"algorithm.recompute_logprobs": recomputed}
    plain, decoupled = (
        make_learner(make_cfg({**keys, "algorithm.loss_type": kind}))
        for kind in ("actor", "decoupled_actor")
    )
    for learner in (plain, decoupled):
        _, metrics = learn(learner, make_groups(make_model(learner.cfg.actor.model)))
    assert distance(weights(plain), weights(decoupled)) < 1e-5
    assert metrics["actor/behave_weight"] == pytest.approx(1.0, abs=1e-4)


# -- reference ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", [{}, {"actor.offload_reference": True}, {"actor.model": {**MODEL, "is_lora": True}}]
)
def test_the_metric_is_the_divergence_from_the_first_policy(way):
    learner = make_learner(make_cfg({"algorithm.kl_beta": 0.1, **way}))
    assert (learner.engine.reference is None) == learner.engine.model.has_adapters
    initial = copy.deepcopy(learner.engine.model)
    _, first = learn(learner, make_groups(initial, seed=1))
    assert first["actor/kl_ref"] == pytest.approx(0.0, abs=1e-6)
    now, then = (make_groups(m, seed=2) for m in (learner.engine.model, initial))
    terms = []
    for one, other in zip(now, then, strict=True):
        for a, b in zip(one.samples, other.samples, strict=True):
            for x, y in zip(a.logprobs, b.logprobs, strict=True):
                terms.append(math.exp(y - x) - (y - x) - 1)
    _, second = learn(learner, now)
    assert second["actor/kl_ref"] == pytest.approx(sum(terms) / len(terms), rel=1e-3)
    assert second["actor/kl_ref"] > 1e-4


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("adv_type", ["grpo", "raw"])
def test_divergence_in_the_reward_is_taken_from_the_rewards(kind, adv_type):
    learner = make_learner(
        make_cfg(
            {
                "algorithm.kl_beta": 0.5,
                "algorithm.kl_in": "reward",
                "algorithm.kl_penalty_type": kind,
                "algorithm.adv_type": adv_type,
                "algorithm.normalize_advantages": False,
            }
        )
    )
    initial = copy.deepcopy(learner.engine.model)
    learn(learner, make_groups(initial, seed=1))
    now, then = (make_groups(m, seed=2, version=1) for m in (learner.engine.model, initial))
    learner.prepare(now)
    own = learner._samples.advantages
    estimate = {
        "k1": lambda d: -d,
        "k2": lambda d: 0.5 * d * d,
        "k3": lambda d: math.exp(d) - d - 1,
    }[kind]
    for one, other in zip(now, then, strict=True):
        for a, b in zip(one.samples, other.samples, strict=True):
            pairs = zip(a.logprobs, b.logprobs, strict=True)
            a.reward -= 0.5 * sum(estimate(y - x) for x, y in pairs)
    plain = make_learner(
        make_cfg({"algorithm.adv_type": adv_type, "algorithm.normalize_advantages": False})
    )
    plain.prepare(now)
    torch.testing.assert_close(own, plain._samples.advantages, rtol=1e-3, atol=1e-4)


# -- what counts --------------------------------------------------------------------------------


def test_responses_that_were_cut_can_be_left_out():
    groups = make_groups(make_model(make_cfg().actor.model))
    shown = make_learner(make_cfg()).prepare(groups)
    masked = make_learner(make_cfg({"algorithm.mask_truncated": True}))
    assert masked.prepare(groups) | {"advantages_mean": 0} == shown | {"advantages_mean": 0}
    samples = masked._samples
    cut = samples.batch.truncated[samples.batch.sequence_ids()]
    assert cut.any() and torch.equal(samples.mask, ~cut)
    plain = make_learner(make_cfg())
    plain.prepare(groups)
    torch.testing.assert_close(samples.advantages, plain._samples.advantages * ~cut)


def test_groups_outside_of_the_bounds_are_left_out():
    groups = make_groups(make_model(make_cfg().actor.model))
    for group, reward in zip(groups, (0.0, 1.0, 0.5, 0.25), strict=True):
        for i, sample in enumerate(group.samples):
            sample.reward = reward + (0.01 * i - 0.015)
    keys = {"algorithm.filter_rewards": True, "algorithm.rewards_lower_bound": 0.2}
    learner = make_learner(make_cfg({**keys, "algorithm.rewards_upper_bound": 0.9}))
    assert learner.prepare(groups)["groups_kept"] == 0.5
    counts = learner._samples.counts()
    assert counts.view(4, 4).sum(1).bool().tolist() == [False, False, True, True]
    none = make_learner(make_cfg({**keys, "algorithm.rewards_lower_bound": 7.0}))
    before = weights(none)
    _, metrics = learn(none, groups)
    assert metrics["actor/updates_empty"] == 1 and metrics["actor/updates"] == 0
    assert distance(before, weights(none)) == 0.0 and "nothing of this batch" in none.said[0]


def test_a_reward_that_is_no_number_stops_or_costs_its_group():
    groups = make_groups(make_model(make_cfg().actor.model), seed=3)
    groups[1].samples[2].reward = math.nan
    with pytest.raises(FloatingPointError, match="sample 2 of prompt 301 is nan"):
        make_learner(make_cfg()).prepare(groups)
    learner = make_learner(make_cfg({"runner.on_nan": "skip"}))
    learner.prepare(groups)
    counts = learner._samples.counts().view(4, 4)
    assert (counts[1] == 0).all() and (counts[[0, 2, 3]] > 0).all()
    assert learner.update()["nan_skipped"] == 1


def test_what_is_not_chosen_might_as_well_not_be_there():
    one, other = make_learner(make_cfg()), make_learner(make_cfg())
    groups = make_groups(one.engine.model, count=6)
    chosen = [group.prompt.index for group in groups[:4]]
    one.prepare(groups[::-1], chosen)
    other.prepare(groups[:4])
    assert one.update() == other.update()
    assert distance(weights(one), weights(other)) == 0.0


def test_a_response_may_be_empty():
    groups = make_groups(make_model(make_cfg().actor.model))
    for group in groups:
        group.samples[0] = replace(group.samples[0], response_ids=[], logprobs=[], versions=[])
    for changes in ({}, {"algorithm.loss_agg_func": "seq-mean-token-mean"}, CRITIC):
        metrics = learn(make_learner(make_cfg(changes)), groups)[1]
        assert metrics["actor/updates"] == 1 and math.isfinite(metrics["actor/grad_norm"])


def test_a_critic_goes_first_for_some_steps():
    learner = make_learner(make_cfg({**CRITIC, "algorithm.critic_warmup_steps": 1}))
    before = weights(learner)
    metrics = learn(learner, make_groups(learner.engine.model))[1]
    after = weights(learner)
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved and all(name.startswith("critic.") for name in moved)
    assert "actor/updates" not in metrics and metrics["critic/updates"] == 1
    assert learn(learner, make_groups(learner.engine.model, 2, version=1))[1]["actor/updates"] == 1


@pytest.mark.parametrize("recipe", [GAE, CRITIC], ids=["head", "network"])
def test_values_learn_the_returns(recipe):
    changes = {**recipe, "algorithm.update_epoch": 4}
    learner = make_learner(make_cfg(changes | {"algorithm.value_clip": None}))
    groups = make_groups(learner.engine.model)
    losses = [learn(learner, groups)[1]["critic/value_loss"] for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]


# -- supervision --------------------------------------------------------------------------------

EXAMPLES = [([1, 2], [3, 4, 5]), ([2], [6, 7]), ([3, 3, 3], [8]), ([4, 1], [9, 10, 11, 12])]
SUPERVISED = {
    "actor.supervised": {
        "steps": 40,
        "batch_size": 4,
        "optim": {"lr": 3e-2, "adam_eps": 1e-3, "lr_scheduler": "linear"},
    },
    "algorithm.kl_beta": 0.1,
}


def test_examples_are_learnt_and_reinforcement_begins_afresh():
    learner = make_learner(make_cfg(SUPERVISED))
    first = learner.supervise(EXAMPLES)
    initial = make_model(learner.cfg.actor.model)
    terms = []
    for prompt, response in EXAMPLES:
        lengths = torch.tensor([len(prompt)]), torch.tensor([len(response)])
        out = initial(Sequences(torch.tensor(prompt + response), *lengths))
        terms += (-out["logprobs"]).tolist()
    assert first["actor/supervised_loss"] == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    assert first["actor/lr"] == pytest.approx(3e-2)
    assert learner.engine.optimizer.param_groups[0]["lr"] == pytest.approx(3e-2 * 39 / 40)
    for _ in range(39):
        last = learner.supervise(EXAMPLES)
    assert last["actor/supervised_loss"] < 0.1 * first["actor/supervised_loss"]
    assert learner.version == 40
    metrics = learn(learner, make_groups(learner.engine.model, version=40))[1]
    assert metrics["actor/lr"] == 1e-2 and learner.engine.steps == 1
    assert metrics["actor/kl_ref"] == pytest.approx(0.0, abs=1e-6), "compared with what SFT made"
    state = next(iter(learner.engine.optimizer.state.values()))
    assert float(state["step"]) == 1
    with pytest.raises(RuntimeError, match="it has begun already"):
        learner.supervise(EXAMPLES)


def test_several_steps_may_come_at_once():
    one, other = (make_learner(make_cfg(SUPERVISED)) for _ in range(2))
    one.supervise(EXAMPLES)
    one.supervise(EXAMPLES[::-1])
    metrics = other.supervise(EXAMPLES + EXAMPLES[::-1])
    assert metrics["actor/updates"] == 2
    assert distance(weights(one), weights(other)) == 0.0


def test_examples_make_whole_steps():
    with pytest.raises(ValueError, match="3 examples cannot be learnt in steps of .* 4"):
        make_learner(make_cfg(SUPERVISED)).supervise(EXAMPLES[:3])


def test_there_is_nothing_to_train_on_before_credit():
    with pytest.raises(RuntimeError, match="call compute_advantages_and_returns first"):
        make_learner(make_cfg()).update()
