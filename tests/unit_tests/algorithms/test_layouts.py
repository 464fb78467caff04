"""Chunks and tokens brought into the layout of the algorithms, and back."""

import pytest
import torch

from rlinf.algorithms.masks import until_done_in_chunk
from rlinf.algorithms.metrics import ExplainedVariance, MetricMax, MetricSum
from rlinf.algorithms.registry import calculate_adv_and_returns
from rlinf.algorithms.utils import (
    compute_embodied_advantages,
    compute_token_advantages,
    flatten_chunks,
    reduce_level,
    unflatten_chunks,
)
from tests.unit_tests.algorithms.slow import loop_gae

D = torch.float64


def chunks(seed=0, t=4, envs=6, c=3, unit=3):
    """A window with ends anywhere in a chunk, one at most per chunk."""
    g = torch.Generator().manual_seed(seed)
    where = torch.randint(0, 3 * c, (t, envs, 1), generator=g)
    dones = torch.arange(c).expand(t, envs, c) == where
    terms = dones & (torch.rand(t, envs, c, generator=g) < 0.5)
    return {
        "rewards": torch.randn(t, envs, c, generator=g, dtype=D),
        "dones": dones,
        "terminations": terms,
        "values": torch.randn(t + 1, envs, unit, generator=g, dtype=D),
        "bootstrap_values": torch.randn(t, envs, 1, generator=g, dtype=D),
    }


def test_flattening_keeps_the_order_of_time():
    tensor = torch.arange(24).reshape(2, 3, 4)
    steps = flatten_chunks(tensor)
    assert steps[:, 0].tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert torch.equal(unflatten_chunks(steps, 4), tensor)


def test_action_level_gae_ends_episodes_in_the_middle_of_a_chunk():
    batch = chunks()
    mask = until_done_in_chunk(batch["dones"])
    assert batch["dones"][:, :, :-1].any() and not mask.all()
    advantages, returns, same_mask = compute_embodied_advantages(
        adv_type="gae", reward_type="action_level", gamma=0.9, loss_mask=mask, **batch
    )
    # Step by step, with plain loops over chunks and actions.
    rows = {name: [] for name in ("rewards", "dones", "terminations", "mask", "values", "boot")}
    for t in range(4):
        for c in range(3):
            for name in ("rewards", "dones", "terminations", "values"):
                rows[name].append(batch[name][t, :, c])
            rows["mask"].append(mask[t, :, c])
            rows["boot"].append(batch["bootstrap_values"][t, :, 0])
    rows["values"].append(batch["values"][4, :, 0])
    stacked = {name: torch.stack(row) for name, row in rows.items()}
    expected = loop_gae(
        *(stacked[k] for k in ("rewards", "values", "dones", "terminations", "boot", "mask")),
        0.9,
        0.95,
    )
    for t in range(4):
        for c in range(3):
            torch.testing.assert_close(advantages[t, :, c], expected[3 * t + c])
    torch.testing.assert_close(returns[mask], (advantages + batch["values"][:-1])[mask])
    assert torch.equal(same_mask, mask)


def test_chunk_level_gae_counts_a_chunk_until_its_end():
    batch = chunks(seed=1, unit=1)
    # An env that is stepped on after its end may report others: the first one is real.
    ended = batch["dones"][:, :, :-1].any(-1)
    assert ended.any()
    batch["terminations"][:, :, -1] |= ended
    batch["dones"][:, :, -1] |= ended
    mask = until_done_in_chunk(batch["dones"])
    advantages, returns, chunk_mask = compute_embodied_advantages(
        adv_type="gae",
        reward_type="chunk_level",
        discount_per="chunk",
        gamma=0.9,
        loss_mask=mask,
        **batch,
    )
    rewards = torch.zeros(4, 6, dtype=D)
    dones, terms = torch.zeros(4, 6).bool(), torch.zeros(4, 6).bool()
    for t in range(4):
        for env in range(6):
            for c in range(3):
                rewards[t, env] += batch["rewards"][t, env, c]
                if batch["dones"][t, env, c]:
                    dones[t, env] = True
                    terms[t, env] = batch["terminations"][t, env, c]
                    break
    assert torch.equal(chunk_mask, mask.any(-1, keepdim=True))
    values, boots = batch["values"].squeeze(-1), batch["bootstrap_values"].squeeze(-1)
    expected = loop_gae(rewards, values, dones, terms, boots, chunk_mask.squeeze(-1), 0.9, 0.95)
    torch.testing.assert_close(advantages.squeeze(-1), expected)
    assert advantages.shape == returns.shape == (4, 6, 1)


def test_chunks_of_one_action_are_the_same_at_both_levels():
    batch = chunks(seed=2, c=1, unit=1)
    for adv_type in ("gae", "grpo", "reinpp", "raw"):
        results = [
            compute_embodied_advantages(
                adv_type=adv_type, reward_type=level, group_size=3, gamma=0.9, **batch
            )
            for level in ("action_level", "chunk_level")
        ]
        assert torch.equal(results[0][0], results[1][0])
    bare = {name: tensor.squeeze(-1) for name, tensor in batch.items()}
    steps, _ = calculate_adv_and_returns(adv_type="raw", **bare)
    torch.testing.assert_close(results[0][0].squeeze(-1), steps)


def test_divergence_is_summed_over_the_step():
    batch = chunks(seed=3)
    logprobs, reference = torch.randn(2, 4, 6, 3, 2, dtype=D).unbind()
    common = {"adv_type": "reinpp", "reinpp_kl_beta": 0.5, "kl_penalty_type": "k1"}
    batch["dones"] = torch.zeros_like(batch["dones"])
    arguments = {k: batch[k] for k in ("rewards", "dones")}
    by_level = [
        compute_embodied_advantages(
            reward_type=level, logprobs=logprobs, ref_logprobs=reference, **common, **arguments
        )[0][0, :, 0]
        for level in ("action_level", "chunk_level")
    ]
    expected = batch["rewards"].sum((0, 2)) - 0.5 * (logprobs - reference).sum((0, 2, 3))
    for first_step in by_level:
        torch.testing.assert_close(first_step, expected)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"reward_type": "video_level"}, "allowed: action_level, chunk_level"),
        ({"values": torch.zeros(5, 6, 1)}, r"with reward_type action_level.*must be \(5, 6, 3\)"),
        ({"dones": torch.zeros(5, 6, 3)}, r"must be \[T, B, C\]"),
    ],
)
def test_bad_chunks_are_named(change, complaint):
    arguments = chunks() | {"reward_type": "action_level"} | change
    with pytest.raises(ValueError, match=complaint):
        compute_embodied_advantages(adv_type="gae", **arguments)


MASK = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()


def test_token_grpo_and_raw_spread_the_reward_over_valid_tokens():
    rewards = torch.tensor([1.0, 0.0, 2.0, 4.0])
    advantages, _ = compute_token_advantages(
        adv_type="grpo", rewards=rewards, response_mask=MASK, group_size=2
    )
    one, two = 0.5 / (0.5**0.5 + 1e-6), 1.0 / (2**0.5 + 1e-6)
    expected = torch.tensor([one, -one, -two, two]).unsqueeze(1) * MASK
    torch.testing.assert_close(advantages, expected)
    raw, _ = compute_token_advantages(adv_type="raw", rewards=rewards, response_mask=MASK)
    assert torch.equal(raw, rewards.unsqueeze(1) * MASK)


def test_token_reinpp_puts_the_reward_at_each_last_valid_token():
    rewards, logprobs = torch.tensor([1.0, 2.0, 3.0, 9.0]), torch.full((4, 4), -1.0)
    advantages, _ = compute_token_advantages(
        adv_type="reinpp",
        rewards=rewards,
        response_mask=MASK,
        logprobs=logprobs,
        ref_logprobs=logprobs - 0.5,
        reinpp_kl_beta=0.2,
        kl_penalty_type="k1",
    )
    expected = [[0.8, 0.9, 0, 0], [0, 1.8, 0, 1.9], [2.6, 2.7, 2.8, 2.9], [0, 0, 0, 0]]
    torch.testing.assert_close(advantages, torch.tensor(expected))


def test_token_gae_passes_over_what_the_policy_did_not_write():
    values = torch.tensor([[1.0, 2.0, 9.0, 9.0], [9.0, 3.0, 9.0, 4.0]])
    advantages, returns = compute_token_advantages(
        adv_type="gae",
        rewards=torch.tensor([10.0, 20.0]),
        response_mask=MASK[:2],
        values=values,
        gamma=1.0,
        gae_lambda=0.5,
    )
    expected = [[1 + 0.5 * 8, 8, 0, 0], [0, 1 + 0.5 * 16, 0, 16]]
    torch.testing.assert_close(advantages, torch.tensor(expected))
    torch.testing.assert_close(returns, (advantages + values) * MASK[:2])


def test_token_rewards_may_be_given_per_token():
    rewards = torch.arange(16.0).reshape(4, 4) * MASK
    _, returns = compute_token_advantages(
        adv_type="gae", rewards=rewards, response_mask=MASK, gamma=1.0
    )
    assert returns[2].tolist() == [38.0, 30.0, 21.0, 11.0]


@pytest.mark.parametrize(
    ("level", "dims", "shape"),
    [("token_level", (), (2, 3, 4)), ("action_level", (2,), (2, 3)), ("chunk_level", (1, 2), (2,))],
)
def test_log_probabilities_are_summed_over_their_unit(level, dims, shape):
    tensor = torch.randn(2, 3, 4)
    result = reduce_level(tensor, level)
    assert result.shape == shape
    torch.testing.assert_close(result, tensor.sum(dims) if dims else tensor)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    tensor[~mask] = torch.nan
    assert reduce_level(tensor, level, mask).isfinite().all()


def test_unknown_levels_are_named():
    with pytest.raises(ValueError, match="allowed: token_level"):
        reduce_level(torch.zeros(1, 1, 1), "joint_level")


def test_metrics_that_saw_nothing_have_no_value():
    assert MetricSum.of(torch.tensor(0.0), 0.0).value() is None
    assert MetricMax.of(torch.zeros(0)).value() is None
    assert ExplainedVariance.of(torch.ones(3), torch.zeros(3)).value() is None
    assert ExplainedVariance.of(torch.ones(1), torch.zeros(1)).value() is None
