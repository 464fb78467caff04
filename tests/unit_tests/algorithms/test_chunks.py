"""Advantages of chunks of actions, in which an episode may end anywhere, held to plain loops."""

import pytest
import torch

from rlinf.algorithms.utils import compute_embodied_advantages
from rlinf.utils.return_scale import ReturnScale

D = torch.float64
GAMMA, LAMBDA = 0.9, 0.8


def window(chunk, ends, *, steps=4, auto_reset=True, seed=0):
    """A rollout of one env per end: its episode ends after that many env steps.

    With auto-reset the next episode begins with the next chunk; without, the env rests.
    """
    g = torch.Generator().manual_seed(seed)
    shape = (steps, len(ends), chunk)
    rewards = torch.randn(shape, generator=g, dtype=D)
    dones, valid = torch.zeros(shape).bool(), torch.ones(shape).bool()
    for env, end in enumerate(ends):
        t, c = divmod(end - 1, chunk)
        dones[t, env, c] = True
        valid[t, env, c + 1 :] = False
        if not auto_reset:
            valid[t + 1 :, env] = False
    rewards[~valid] = 0.0
    terminations = dones & (torch.rand(shape, generator=g) < 0.5)
    return {
        "rewards": rewards,
        "dones": dones,
        "terminations": terminations,
        "loss_mask": valid,
        "bootstrap_values": torch.randn(steps, len(ends), chunk, generator=g, dtype=D),
    }


def decisions(batch, env, level, per, values):
    """What the policy decided in one env: dicts in the order of time, by loops.

    `at` is where the credit goes, `k` counts what is discounted, `following` is the value of the
    state after the decision, `over` says that the episode ends with it.
    """
    steps, _, chunk = batch["rewards"].shape
    out = []
    for t in range(steps):
        actions = [c for c in range(chunk) if batch["loss_mask"][t, env, c]]
        if not actions:
            continue
        groups = [actions] if level == "chunk_level" else [[c] for c in actions]
        for group in groups:
            last = group[-1]
            over = bool(batch["dones"][t, env, last])
            if over:
                boot = float(batch["bootstrap_values"][t, env, 0])
                following = 0.0 if batch["terminations"][t, env, last] else boot
            elif last == actions[-1]:
                following = float(values[t + 1, env, 0])
            else:
                following = float(values[t, env, last + 1])
            per_step = GAMMA if per == "step" else 1.0
            reward = 0.0
            for i, c in enumerate(group):
                reward += per_step**i * float(batch["rewards"][t, env, c])
            if per == "step":
                k = len(group)
            else:
                k = 1 if last == actions[-1] else 0
            head = 0 if level == "chunk_level" else group[0]
            value = float(values[t, env, head])
            out.append(
                {
                    "at": (t, env, head),
                    "k": k,
                    "delta": reward + GAMMA**k * following - value,
                    "over": over,
                    "value": value,
                }
            )
    return out


def slow_gae(batch, level, per, values):
    """Textbook sums: A = sum over what follows of (gamma lambda)^(steps between) delta."""
    steps, envs, chunk = batch["rewards"].shape
    width = 1 if level == "chunk_level" else chunk
    advantages = torch.zeros(steps, envs, width, dtype=D)
    returns = torch.zeros_like(advantages)
    for env in range(envs):
        made = decisions(batch, env, level, per, values)
        for i, first in enumerate(made):
            total, between = 0.0, 0
            for decision in made[i:]:
                total += (GAMMA * LAMBDA) ** between * decision["delta"]
                between += decision["k"]
                if decision["over"]:
                    break
            advantages[first["at"]] = total
            returns[first["at"]] = total + first["value"]
    return advantages, returns


@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("per", ["step", "chunk"])
@pytest.mark.parametrize("level", ["chunk_level", "action_level"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5])
def test_gae_with_an_end_at_every_offset(chunk, level, per, auto_reset):
    batch = window(chunk, range(1, 4 * chunk + 1), auto_reset=auto_reset, seed=chunk)
    envs = batch["rewards"].shape[1]
    width = 1 if level == "chunk_level" else chunk
    values = torch.randn(5, envs, width, dtype=D, generator=torch.Generator().manual_seed(9))
    advantages, returns, mask = compute_embodied_advantages(
        adv_type="gae",
        reward_type=level,
        discount_per=per,
        values=values,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        **batch,
    )
    expected = slow_gae(batch, level, per, values)
    torch.testing.assert_close(advantages, expected[0])
    torch.testing.assert_close(returns, expected[1])
    valid = batch["loss_mask"]
    assert torch.equal(mask, valid if level == "action_level" else valid.any(-1, keepdim=True))


@pytest.mark.parametrize("end", [6, 8])
def test_a_reward_at_the_end_reaches_the_chunks_before_it(end):
    batch = window(4, [end], steps=2, auto_reset=True)
    batch["rewards"][:] = 0.0
    batch["rewards"][(end - 1) // 4, 0, (end - 1) % 4] = 1.0
    batch["terminations"] = batch["dones"]
    _, returns, _ = compute_embodied_advantages(
        adv_type="gae", reward_type="chunk_level", gamma=1.0, **batch
    )
    assert returns.flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5])
def test_group_advantages_see_the_whole_return_wherever_an_episode_ends(chunk):
    ends = range(1, 4 * chunk + 1)
    batch = window(chunk, ends, auto_reset=False, seed=3)
    envs = len(ends)
    for level in ("chunk_level", "action_level"):
        advantages, _, mask = compute_embodied_advantages(
            adv_type="grpo", reward_type=level, group_size=envs, group_scale="none", **batch
        )
        scores = [float(batch["rewards"][:, env].sum()) for env in range(envs)]
        mean = sum(scores) / envs
        for env in range(envs):
            own = advantages[:, env][mask[:, env]]
            torch.testing.assert_close(own, torch.full_like(own, scores[env] - mean))


def test_discounts_of_chunks_make_no_difference_to_chunks_of_one():
    batch = window(1, range(1, 5), seed=1)
    values = torch.randn(5, 4, 1, dtype=D)
    one, other = (
        compute_embodied_advantages(
            adv_type="gae", discount_per=per, values=values, gamma=GAMMA, **batch
        )[0]
        for per in ("step", "chunk")
    )
    assert torch.equal(one, other)


def test_an_unknown_unit_of_the_discount_is_named():
    with pytest.raises(ValueError, match="discount_per is 'token'; allowed: step, chunk"):
        compute_embodied_advantages(adv_type="gae", discount_per="token", **window(2, [3]))


def slow_returns(batch, begins, epochs, per_chunk, carried):
    """G of every action that was carried out, and G of each env at the end."""
    steps, columns, chunk = batch["rewards"].shape
    envs = columns // epochs
    seen = []
    running = list(carried)
    for env in range(envs):
        for epoch in range(epochs):
            column = epoch * envs + env
            if begins[column]:
                running[env] = 0.0
            for t in range(steps):
                for c in range(chunk):
                    if not batch["loss_mask"][t, column, c]:
                        continue
                    discount = 1.0 if per_chunk and c > 0 else GAMMA
                    running[env] = discount * running[env] + float(batch["rewards"][t, column, c])
                    seen.append(running[env])
                    if batch["dones"][t, column, c]:
                        running[env] = 0.0
    return seen, running


@pytest.mark.parametrize("per_chunk", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("auto_reset", [True, False])
def test_the_scale_of_returns_follows_episodes(chunk, per_chunk, auto_reset):
    scale = ReturnScale(GAMMA, per_chunk=per_chunk)
    epochs, envs = 2, 2 * chunk
    count, total, squares, carried = 1e-4, 0.0, 1e-4, [0.0] * envs
    for number in range(3):
        batch = window(chunk, range(1, 4 * chunk + 1), auto_reset=auto_reset, seed=number)
        begins = torch.full((2 * envs,), number == 0 or not auto_reset)
        scaled = scale.apply(
            batch["rewards"],
            batch["dones"],
            valid=batch["loss_mask"],
            begins=begins,
            epochs=epochs,
        )
        seen, carried = slow_returns(batch, begins.tolist(), epochs, per_chunk, carried)
        count += len(seen)
        total += sum(seen)
        squares += sum(value**2 for value in seen)
        mean = total / count
        variance = squares / count - mean**2
        assert scale.mean == pytest.approx(mean, rel=1e-9)
        assert scale.var == pytest.approx(variance, rel=1e-9)
        expected = (batch["rewards"] / (variance + 1e-8) ** 0.5).clamp(-10, 10)
        torch.testing.assert_close(scaled, expected)


def test_the_scale_does_not_depend_on_how_envs_are_spread_over_ranks():
    batch = window(3, range(1, 13), seed=5)
    whole = ReturnScale(GAMMA)
    whole.apply(batch["rewards"], batch["dones"], valid=batch["loss_mask"])
    sums = torch.zeros(3, dtype=D)
    for half in (slice(0, 6), slice(6, 12)):
        part = {name: tensor[:, half] for name, tensor in batch.items()}

        def collect(tensor):
            sums.add_(tensor)
            return tensor

        ReturnScale(GAMMA).apply(
            part["rewards"], part["dones"], valid=part["loss_mask"], all_reduce=collect
        )
    rank = ReturnScale(GAMMA)
    rank.apply(
        batch["rewards"][:, :6],
        batch["dones"][:, :6],
        valid=batch["loss_mask"][:, :6],
        all_reduce=lambda _: sums,
    )
    assert rank.var == pytest.approx(whole.var, rel=1e-12)


def test_a_window_in_which_nothing_was_stepped_leaves_the_scale_alone():
    scale = ReturnScale(GAMMA)
    nothing = torch.zeros(2, 3, 2)
    scaled = scale.apply(nothing, nothing.bool(), valid=nothing.bool())
    assert scale.var == 1.0 and torch.equal(scaled, nothing)
