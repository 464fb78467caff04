"""Credit of turns and of agents, against a slow reference, and what must not change it."""

import random
from dataclasses import replace
from statistics import fmean, stdev

import pytest
import torch

from rlinf.agents.calls import EngineCall
from rlinf.agents.trajectory import Trajectory
from rlinf.algorithms.registry import register_advantage
from rlinf.config.errors import ConfigError
from rlinf.data.credit_units import CreditUnits
from rlinf.data.reasoning import GroupRequest, Prompt, SampleGroup
from rlinf.data.token_batch import TokenBatch
from rlinf.data.trajectories import Trajectories
from rlinf.workers.actor.reasoning_credit import ReasoningCredit
from rlinf.workers.rollout.episode_samples import group_of_episodes
from tests.unit_tests.workers.actor.episodes import AGENTS, make_episodes
from tests.unit_tests.workers.actor.reasoning import (
    GAE,
    distance,
    learn,
    make_cfg,
    make_learner,
    make_model,
    weights,
)

MODES = ("trajectory", "turn", "agent")
MEANS = {"algorithm.loss_agg_func": "seq-mean-token-mean"}
SCALES = {**MEANS, "algorithm.loss_scales": ["group_level", "agent_level", "turn_level"]}


def assign(groups, changes=None, **kwargs):
    cfg = make_cfg({**AGENTS, **(changes or {})})
    credit = ReasoningCredit(cfg, lambda t: t, torch.device("cpu"), pytest.fail)
    return credit.assign(TokenBatch.of(groups), **kwargs)


def slow(groups, mode):
    """Advantages of tokens, by (prompt, sample, place), as `advantage_mode` describes them."""
    found = {}
    for group in groups:
        worth = {}
        for sample in group.samples:
            for turn, agent, given in zip(
                sample.turns, sample.agents, sample.turn_rewards, strict=True
            ):
                key = (sample.trajectory, agent, turn)
                worth[key] = worth.get(key, 0.0) + given
        outcome = {sample.trajectory: sample.reward for sample in group.samples}

        def score(episode, agent, turn, worth=worth, outcome=outcome):
            own = [
                given
                for (e, a, t), given in worth.items()
                if e == episode
                and (mode == "trajectory" or a == agent)
                and (mode != "turn" or t >= turn)
            ]
            return outcome[episode] + sum(own)

        def unit(key):
            return {"trajectory": key[:1], "agent": key[:2], "turn": key}[mode]

        scores = {unit(key): score(*key) for key in worth}
        values = list(scores.values())
        spread = stdev(values) if len(values) > 1 else 0.0
        for sample in group.samples:
            for place, own in enumerate(sample.loss_mask):
                name = (group.prompt.index, sample.sample_index, place)
                key = (sample.trajectory, sample.agents[place], sample.turns[place])
                relative = scores[unit(key)] - fmean(values)
                even = max(values) - min(values) < 1e-6
                found[name] = 0.0 if even or not own else relative / (spread + 1e-6)
    return found


def by_token(groups, credit):
    names = [
        (group.prompt.index, sample.sample_index, place)
        for group in groups
        for sample in group.samples
        for place in range(len(sample.response_ids))
    ]
    return dict(zip(names, credit.advantages.tolist(), strict=True))


def one_cut(groups):
    """Cut the sequence of a worker; return it, and one of its team."""
    for group in groups:
        for parts in group.by_trajectory():
            own = [sample for sample in parts if set(sample.agents) == {1}]
            if own and len(parts) > 1:
                own[0].finish_reason = "length"
                other = next(sample for sample in parts if sample is not own[0])
                return (group.prompt.index, own[0]), (group.prompt.index, other)
    raise AssertionError("no episode has several agents")


@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_that_was_cut_is_masked_and_not_its_team(mode):
    groups = make_episodes(seed=2)
    whole = by_token(groups, assign(groups, {"algorithm.advantage_mode": mode}))
    cut, other = one_cut(groups)
    masked = {"algorithm.advantage_mode": mode, "algorithm.mask_truncated": True}
    credit = assign(groups, masked)
    found = by_token(groups, credit)
    for (prompt, sample), left in ((cut, False), (other, True)):
        places = [(prompt, sample.sample_index, n) for n in range(len(sample.response_ids))]
        kept = [found[place] == pytest.approx(whole[place]) for place in places]
        written = [place for place, own in zip(places, sample.loss_mask, strict=True) if own]
        assert any(whole[place] for place in written), "the test shows nothing"
        assert all(kept) if left else not any(found[place] for place in places)
    # What was cut counts in the baseline: all else is as it was.
    apart = {(cut[0], cut[1].sample_index)}
    assert all(found[n] == pytest.approx(whole[n]) for n in whole if n[:2] not in apart)


def test_an_episode_at_its_limit_cuts_the_sequence_of_its_lead():
    calls = [
        EngineCall([1], [2], [0.0], [0], "stop", 0, 0),
        EngineCall([3], [4], [0.0], [0], "stop", 1, 1),
    ]
    request = GroupRequest(Prompt(0, [1], "", None, "t", {}), 1, 0)
    group = group_of_episodes(request, [Trajectory(calls, ending="max_turns")], "score")
    assert [sample.finish_reason for sample in group.samples] == ["length", "stop"]


def test_the_bounds_of_groups_see_the_rewards_of_turns():
    groups = make_episodes(seed=1, count=2, given=False)
    for sample in (s for group in groups for s in group.samples):
        sample.reward, sample.turn_rewards = 0.0, [0.0] * len(sample.response_ids)
    for sample in groups[1].samples:
        place = max(n for n, own in enumerate(sample.loss_mask) if own)
        sample.turn_rewards[place] = 1.0
    bounds = {"algorithm.filter_rewards": True, "algorithm.rewards_lower_bound": 0.5}
    credit = assign(groups, bounds)
    of_first = sum(len(sample.response_ids) for sample in groups[0].samples)
    assert not credit.mask[:of_first].any() and credit.mask[of_first:].any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_advantages_are_those_of_the_reference(mode, seed):
    groups = make_episodes(seed=seed)
    found = by_token(groups, assign(groups, {"algorithm.advantage_mode": mode}))
    expected = slow(groups, mode)
    assert any(expected.values()) and found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["grpo", "raw", "reinpp", "divergence in the reward"])
def test_the_order_of_sequences_has_no_effect(mode, way):
    changes = {"algorithm.advantage_mode": mode, **SCALES}
    if way == "divergence in the reward":
        changes |= {"algorithm.kl_beta": 0.1, "algorithm.kl_in": "reward"}
    else:
        changes["algorithm.adv_type"] = way
    groups = make_episodes(seed=5)
    draw = random.Random(0)
    moved = []
    for group in groups[::-1]:
        episodes = group.by_trajectory()
        draw.shuffle(episodes)
        parts = [draw.sample(samples, len(samples)) for samples in episodes]
        moved.append(SampleGroup(group.prompt, [sample for part in parts for sample in part]))
    credits = []
    for each in (groups, moved):
        batch = TokenBatch.of(each)
        known = {"logprobs": batch.logprobs, "ref_logprobs": batch.logprobs * 0.5}
        credit = assign(each, changes, **known)
        scaled = replace(credit, advantages=credit.scales.weights)
        credits.append((by_token(each, credit), by_token(each, scaled)))
    for one, other in zip(*credits, strict=True):
        assert any(one.values()) and one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_episodes_that_are_left_out_are_in_no_baseline(mode):
    groups, fewer = make_episodes(seed=2), make_episodes(seed=2)
    for with_all, without in zip(groups, fewer, strict=True):
        for sample in with_all.samples:
            sample.left_out = sample.trajectory == 1
        without.samples = [sample for sample in without.samples if sample.trajectory != 1]
    credit = assign(groups, {"algorithm.advantage_mode": mode, **SCALES})
    found, expected = by_token(groups, credit), slow(fewer, mode)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert not any(value for name, value in found.items() if name not in expected)
    assert float(credit.scales.shares.sum()) == pytest.approx(3 * len(groups))


def test_a_turn_is_judged_by_what_came_of_it():
    """Turns with one outcome differ by what they and later turns of their agent were given."""
    groups = make_episodes(seed=3, count=1, size=2)
    for sample in groups[0].samples:
        sample.reward = 1.0
        sample.turn_rewards = [0.0] * len(sample.turns)
    assert not assign(groups, {"algorithm.advantage_mode": "turn"}).advantages.any()
    sample = max(groups[0].samples, key=lambda sample: len(set(sample.turns)))
    last = max(place for place, own in enumerate(sample.loss_mask) if own)
    sample.turn_rewards[last] = 1.0
    found = by_token(groups, assign(groups, {"algorithm.advantage_mode": "turn"}))
    for other in groups[0].samples:
        for place, own in enumerate(other.loss_mask):
            value = found[groups[0].prompt.index, other.sample_index, place]
            same = other.trajectory == sample.trajectory and (
                other.agents[place] == sample.agents[last]
            )
            assert (value > 0) == (own and same) and (value < 0) == (own and not same)


def test_values_learn_from_the_rewards_of_turns():
    """With gae, a turn's reward is a part of the returns of what was written before it."""
    groups = make_episodes(seed=4)
    plain = make_episodes(seed=4)
    for group in plain:
        for sample in group.samples:
            sample.turn_rewards = None
    changes = {**GAE, "algorithm.gae_lambda": 1.0, "algorithm.normalize_advantages": False}
    values = torch.zeros(len(TokenBatch.of(groups).logprobs))
    with_rewards, without = (assign(each, changes, values=values) for each in (groups, plain))
    batch = TokenBatch.of(groups)
    ids = torch.unique(torch.stack([batch.indices, batch.trajectories]), dim=1, return_inverse=True)
    episode = ids[1][batch.sequence_ids()]
    for number in episode.unique():
        (where,) = ((episode == number) & batch.loss_mask).nonzero(as_tuple=True)
        # In the order of time, in which agents take turns.
        where = where[batch.turns[where].argsort(stable=True)]
        later = batch.turn_rewards[where].flip(0).cumsum(0).flip(0)
        difference = (with_rewards.returns - without.returns)[where]
        assert torch.allclose(difference, later, atol=1e-5)


def test_an_advantage_that_cannot_tell_groups_apart_is_refused():
    @register_advantage("by neighbours", replaces=True)
    def by_neighbours(*, rewards, group_size):
        return rewards - rewards.unflatten(1, (-1, group_size)).mean(-1).repeat_interleave(
            group_size, 1
        ), None

    groups = make_episodes(seed=1)
    named = {"algorithm.adv_type": "by neighbours"}
    assert assign(groups, named).advantages.any()
    with pytest.raises(ValueError, match="let it take group_ids"):
        assign(groups, {**named, "algorithm.advantage_mode": "turn"})


def test_one_turn_of_one_agent_per_episode_weighs_as_ever():
    groups = make_episodes(make_model(make_cfg(AGENTS).actor.model), size=4)
    for group in groups:
        firsts = [parts[0] for parts in group.by_trajectory()]
        for sample in firsts:
            sample.turns, sample.agents = ([0] * len(sample.turns) for _ in range(2))
        group.samples = firsts
    updated = []
    for changes in (MEANS, SCALES):
        learner = make_learner(make_cfg({**AGENTS, **changes}))
        learn(learner, groups)
        updated.append(weights(learner))
    assert distance(*updated) < 1e-6


@pytest.mark.parametrize("levels", [SCALES["algorithm.loss_scales"], ["agent_level"]])
@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_have_no_effect(mode, levels):
    groups = make_episodes(make_model(make_cfg(AGENTS).actor.model), seed=6)
    updated, losses = [], []
    for size in (1, 4, 16):
        changes = {
            **{"algorithm.advantage_mode": mode, "actor.micro_batch_size": size},
            **{**SCALES, "algorithm.loss_scales": levels},
        }
        learner = make_learner(make_cfg({**AGENTS, **changes}))
        losses.append(learn(learner, groups)[1]["actor/policy_loss"])
        updated.append(weights(learner))
    assert distance(updated[0], updated[1]) < 1e-6 and distance(updated[0], updated[2]) < 1e-6
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)
    start = weights(make_learner(make_cfg(AGENTS)))
    assert distance(start, updated[0]) > 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.loss_scales": ["agent_level"]}, "loss_agg_func is token-mean"),
        ({**MEANS, "algorithm.loss_scales": ["turn_level", "agent_level"]}, "in the order"),
        ({**MEANS, "algorithm.loss_scales": ["agent"]}, "agent_level"),
        ({**GAE, "algorithm.advantage_mode": "turn"}, "gae has values"),
        ({"runner.task_type": "reasoning", "algorithm.advantage_mode": "agent"}, "is one turn"),
        (
            {"runner.task_type": "reasoning", **SCALES},
            "set runner.task_type to agent",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, message):
    base = {} if "runner.task_type" in changes else AGENTS
    with pytest.raises(ConfigError, match=message):
        make_cfg({**base, **changes})


def test_credit_through_time_follows_turns_and_not_agents():
    """A lead (turns 0 and 3) whose answer comes after those of its workers (turns 1 and 2)."""
    lead = EngineCall([1], [2], [0.0], [0], "stop", 0, 0)
    workers = [EngineCall([1, 7, n], [3], [0.0], [0], "stop", n, n) for n in (1, 2)]
    last = EngineCall([1, 2, 5], [4], [0.0], [0], "stop", 3, 0)
    prompt = Prompt(0, [1], "", None, "test", {})
    played = [Trajectory([lead, *workers, last])]
    group = group_of_episodes(GroupRequest(prompt, 1, 0), played, "score")
    for sample in group.samples:
        sample.reward = 1.0
    batch = TokenBatch.of([group])
    units = CreditUnits.of(batch, Trajectories.of(batch), "trajectory")
    in_time = units.rows(batch.turns)[0].tolist()
    assert in_time == sorted(in_time) and in_time[-1] == 3
    assert torch.equal(units.flat(units.rows(batch.turns)), batch.turns)
