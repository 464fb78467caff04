"""Credit is over episodes, however many sequences each of them has."""

import random

import pytest
import torch

from rlinf.data.reasoning import Prompt, Sample, SampleGroup
from rlinf.data.token_batch import TokenBatch
from rlinf.workers.actor.reasoning_credit import ReasoningCredit
from tests.unit_tests.workers.actor.reasoning import make_cfg

WAYS = {
    "grpo": {},
    "leave one out": {"algorithm.group_baseline": "leave_one_out"},
    "reinforce++": {"algorithm.adv_type": "reinpp", "algorithm.use_reinpp_baseline": True},
    "divergence in the reward": {"algorithm.kl_beta": 0.1, "algorithm.kl_in": "reward"},
    "gae": {
        "algorithm.adv_type": "gae",
        "algorithm.loss_type": "actor_critic",
        "actor.model.add_value_head": True,
        "algorithm.gamma": 0.9,
    },
}


def assign(changes, groups, **kwargs):
    cfg = make_cfg(changes)
    credit = ReasoningCredit(cfg, lambda t: t, torch.device("cpu"), pytest.fail)
    return credit.assign(TokenBatch.of(groups), **kwargs)


def make_groups(seed=0):
    draw = random.Random(seed)
    groups = []
    for index in range(4):
        samples = []
        for number in range(4):
            count = draw.randint(2, 9)
            mask = [draw.random() < 0.7 for _ in range(count - 1)] + [True]
            samples.append(
                Sample(
                    prompt_index=index,
                    sample_index=number,
                    prompt_ids=[1, 2],
                    response_ids=[draw.randrange(9) for _ in range(count)],
                    logprobs=[-draw.random() for _ in range(count)],
                    versions=[0] * count,
                    finish_reason="stop",
                    reward=float(draw.randrange(3)),
                    loss_mask=mask,
                )
            )
        groups.append(SampleGroup(Prompt(index, [1, 2], "", None, "test", {}), samples))
    return groups


def cut(groups, seed=0):
    """The same episodes, each as up to three sequences, one after the other."""
    draw = random.Random(seed)
    out = []
    for group in groups:
        samples = []
        for sample in group.samples:
            count = len(sample.response_ids)
            places = sorted({0, count, *(draw.randint(0, count) for _ in range(2))})
            for first, last in zip(places, places[1:], strict=False):
                parts = {
                    name: getattr(sample, name)[first:last]
                    for name in ("response_ids", "logprobs", "versions", "loss_mask")
                }
                whole = sample.prompt_ids + sample.response_ids[:first]
                place = {"sample_index": len(samples), "trajectory": sample.sample_index}
                samples.append(
                    Sample(**vars(sample) | parts | place | {"prompt_ids": whole}),
                )
        out.append(SampleGroup(group.prompt, samples))
    return out


@pytest.mark.parametrize("way", WAYS)
def test_an_episode_has_the_same_credit_as_one_sequence_or_as_several(way):
    groups = make_groups()
    count = len(TokenBatch.of(groups).logprobs)
    g = torch.Generator().manual_seed(0)
    known = {
        name: torch.randn(count, generator=g) for name in ("logprobs", "ref_logprobs", "values")
    }
    whole, parts = (assign(WAYS[way], each, **known) for each in (groups, cut(groups)))
    assert parts.advantages.abs().sum() > 0
    assert torch.equal(whole.mask, parts.mask)
    assert torch.equal(whole.advantages, parts.advantages)
    assert (whole.returns is None) == (parts.returns is None)
    if whole.returns is not None:
        assert torch.equal(whole.returns, parts.returns)


def test_the_baseline_counts_episodes_and_not_sequences():
    prompt = Prompt(0, [1], "", None, "test", {})

    def sample(index, trajectory, reward):
        return Sample(0, index, [1], [2], [0.0], [0], "stop", reward, trajectory=trajectory)

    # Three sequences of an episode that is worth 1, one of an episode that is worth 0.
    group = SampleGroup(prompt, [sample(i, int(i == 3), float(i < 3)) for i in range(4)])
    found = assign({"algorithm.group_scale": "none"}, [group]).advantages
    assert found.tolist() == [0.5, 0.5, 0.5, -0.5]


@pytest.mark.parametrize("way", ["grpo", "leave one out"])
def test_episodes_that_are_left_out_are_in_no_baseline(way):
    groups, fewer = make_groups(), make_groups()
    for with_all, without in zip(groups, fewer, strict=True):
        with_all.samples[1].left_out = True
        with_all.samples[1].reward = 100.0
        del without.samples[1]
    credit, expected = assign(WAYS[way], groups), assign(WAYS[way], fewer)
    left_out = TokenBatch.of(groups)
    out = left_out.left_out[left_out.sequence_ids()]
    assert not credit.mask[out].any() and not credit.advantages[out].any()
    assert torch.equal(credit.advantages[~out], expected.advantages)
    assert torch.equal(credit.mask[~out], expected.mask)
    assert credit.metrics["rewards"].value() == expected.metrics["rewards"].value()
    signal = "groups_with_signal"
    assert credit.metrics[signal].value() == expected.metrics[signal].value()


def test_sequences_of_an_episode_that_are_apart_are_refused():
    groups = make_groups()
    first, _, third, _ = groups[1].samples
    first.trajectory = third.trajectory = 7
    with pytest.raises(ValueError, match="episode 7 of prompt 1 do not stand together"):
        assign({}, groups)


def test_an_episode_has_one_reward():
    groups = make_groups()
    first, second, *_ = groups[1].samples
    first.trajectory = second.trajectory = 7
    first.reward, second.reward = 0.0, 1.0
    with pytest.raises(ValueError, match="episode 7 of prompt 1 have several rewards"):
        assign({}, groups)
