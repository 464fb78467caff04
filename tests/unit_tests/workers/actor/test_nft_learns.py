"""DiffusionNFT on a task of one step: hit a target that depends on the state, or get nothing."""

from __future__ import annotations

import torch

from rlinf.data.embodied import EmbodiedBatch
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.nft_learner import NFTLearner
from tests.unit_tests.workers.actor.learning import GRPO, make_cfg, make_policy

GROUPS, SIZE = 24, 8
ENVS = GROUPS * SIZE
CHANGES = {
    **GRPO,
    "algorithm.loss_type": "embodied_nft",
    "algorithm.update_epoch": 4,
    "algorithm.group_size": SIZE,
    "algorithm.filter_rewards": True,
    "algorithm.rewards_lower_bound": 0.01,
    "algorithm.rewards_upper_bound": 0.99,
    "env.train.max_episode_steps": 1,
    "env.train.total_num_envs": ENVS,
    "actor.global_batch_size": 64,
    "actor.optim.lr": 6e-4,
    "actor.model.model_type": "flow_policy",
    "actor.model.hidden_sizes": [64, 64],
    "actor.model.noise_method": "flow_ode",
}
SLOPE = 0.3 * torch.randn(5, 2, generator=torch.Generator().manual_seed(4))


def target(states):
    return (states @ SLOPE).clamp(-0.8, 0.8)


def hits(policy, states, **mode):
    actions, result = policy.predict_action_batch({"states": states}, **mode)
    return (actions[:, 0] - target(states)).abs().amax(-1) < 0.15, actions, result


def imitate(policy):
    """Lets the flow learn actions that are off by noise, and a little to one side."""
    g = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    for _ in range(250):
        states = torch.randn(128, 5, generator=g)
        actions = target(states) + 0.3 * torch.randn(128, 2, generator=g) + 0.1
        noise = torch.randn(128, policy.sft_noise_width, generator=g)
        losses = policy(
            forward_type="sft",
            observations={"states": states},
            actions=actions.clamp(-1, 1)[:, None],
            noise=noise,
        )["losses"]
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()


def played(policy, seed):
    """One step of groups that share a state; whoever hits gets 1."""
    g = torch.Generator().manual_seed(seed)
    states = torch.randn(GROUPS, 5, generator=g).repeat_interleave(SIZE, 0)
    noise = torch.randn(ENVS, policy.noise_width, generator=g)
    hit, actions, result = hits(policy, states, noise=noise)
    ends = torch.ones(1, ENVS, 1, dtype=torch.bool)
    return EmbodiedBatch(
        forward_inputs={k: v[None] for k, v in result["forward_inputs"].items()},
        prev_logprobs=result["prev_logprobs"][None],
        prev_values=torch.zeros(2, ENVS, 1),
        bootstrap_values=torch.zeros(1, ENVS, 1),
        rewards=hit.float().view(1, ENVS, 1),
        terminations=ends,
        truncations=~ends,
        valid=ends.clone(),
        begins=ends[..., 0],
        actions=actions[None],
        intervened=~ends,
        versions=torch.full((1, ENVS), seed),
        finite=ends[..., 0],
    )


def test_an_imitated_policy_comes_to_hit_more_often():
    torch.set_num_threads(1)
    cfg = make_cfg(CHANGES)
    policy = make_policy(cfg)
    imitate(policy)
    learner = NFTLearner(cfg, policy, LearnerPlace(torch.device("cpu"), seed=3))
    states = torch.randn(500, 5, generator=torch.Generator().manual_seed(77))
    noise = torch.randn(500, policy.noise_width, generator=torch.Generator().manual_seed(78))
    before = float(hits(policy, states, noise=noise)[0].float().mean())
    for step in range(25):
        learner.prepare(played(policy, step), range(ENVS))
        learner.update()
    after = float(hits(policy, states, noise=noise)[0].float().mean())
    assert after > 1.5 * before, (before, after)
