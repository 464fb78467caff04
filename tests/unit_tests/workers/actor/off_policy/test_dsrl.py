"""Soft actor-critic of a flow's noise: what the buffer keeps, what is trained, what it comes to."""

from __future__ import annotations

import pytest
import torch

from tests.unit_tests.models.flow_vla.policies import section
from tests.unit_tests.workers.actor.off_policy.replaying import (
    SAC,
    feed,
    make_off_policy,
    make_sac_cfg,
    replay_rollout,
    weights_of,
)

BOUND = 1.5
DSRL = {
    **SAC,
    "actor.model": {
        "model_type": "flow_policy",
        "hidden_sizes": [16],
        "num_action_chunks": 3,
        "action_horizon": 4,
        "use_dsrl": True,
        "add_q_head": True,
        "num_q_heads": 3,
        "noise_bound": BOUND,
        "steering_hidden_sizes": [32],
    },
    "env.train.max_episode_steps": 36,
}
STEERED = {"use_dsrl": True, "add_q_head": True, "num_q_heads": 3, "noise_bound": BOUND}
VLA = section("smolvla", num_images_in_input=1, num_action_chunks=3, action_horizon=4, **STEERED)


def make_dsrl(**changes):
    return make_off_policy(make_sac_cfg(changes, base=DSRL))


def steered_rollout(policy, seed=0):
    """A rollout in which a chunk pays off the nearer its noise is to a point of its own."""
    batch = replay_rollout(policy, seed=seed)
    if hasattr(policy, "prompts"):
        pictures = torch.Generator().manual_seed(seed)
        ends = len(batch.final.obs["states"])
        seen = {
            "states": torch.zeros(1, 5),
            "task_descriptions": ["open it"],
            "main_images": torch.zeros(1, 20, 20, 3, dtype=torch.uint8),
        }
        inputs = policy.steering_inputs(seen)
        for name in ("input_ids", "instruction_ids"):
            batch.forward_inputs[name] = inputs[name].expand(12, 8, -1)
            batch.final.obs[name] = inputs[name].expand(ends, -1)
        draw = {"dtype": torch.uint8, "generator": pictures}
        batch.forward_inputs["view_0"] = torch.randint(0, 256, (12, 8, 20, 20, 3), **draw)
        batch.final.obs["view_0"] = torch.randint(0, 256, (ends, 20, 20, 3), **draw)
    u = torch.randn(12, 8, 2, generator=torch.Generator().manual_seed(seed + 100))
    batch.forward_inputs["action"] = u.repeat(1, 1, 3)
    w = BOUND * u.tanh()
    batch.rewards.zero_()
    batch.rewards[..., 0] = -(w - torch.tensor([0.8, -0.8])).square().sum(-1)
    return batch


def test_the_buffer_keeps_noise_and_not_actions():
    learner = make_dsrl()
    batch = steered_rollout(learner.engine.model)
    learner.prepare(batch, range(8))
    kept = next(iter(learner.replay.sample_batches(1, 16))).actions
    known = (BOUND * batch.forward_inputs["action"].tanh()).view(-1, 3, 2)
    assert kept.shape == (16, 3, 2)
    assert all(any(torch.equal(row, other) for other in known) for row in kept)


@pytest.mark.parametrize("model", [DSRL["actor.model"], VLA], ids=["flow_policy", "smolvla"])
def test_the_flow_stays_and_actor_and_critics_learn(model):
    learner = make_dsrl(**{"actor.model": model})
    before = weights_of(learner)
    metrics = feed(learner, steered_rollout(learner.engine.model))
    after = weights_of(learner)
    changed = [name for name in before if not before[name].equal(after[name])]
    critics = {"q_head", "steering_encoders"} if model is VLA else {"q_head"}
    own = {name.partition(".")[0] for name in changed}
    assert own == {"steering", "target", "alpha"} | critics
    assert {name.split(".")[1] for name in changed if name.startswith("target.")} >= critics
    assert metrics["sac/updates"] == 2.0
    assert learner.temperature.target_entropy == -2.0


@pytest.mark.parametrize("kind", ["smolvla", "gr00t"])
def test_no_rank_builds_the_whole_of_a_steered_model(kind):
    keys = {"num_images_in_input": 1, "num_action_chunks": 3, "action_horizon": 4, **STEERED}
    cfg = make_sac_cfg({"actor.model": section(kind, **keys)}, base=DSRL)
    found = []
    for deferred in (False, True):
        learner = make_off_policy(cfg, deferred=deferred)
        batch = steered_rollout(learner.engine.model)
        found.append((feed(learner, batch), weights_of(learner)))
    (metrics, whole), (others, filled) = found
    assert metrics == others and whole.keys() == filled.keys()
    assert [name for name in whole if not whole[name].equal(filled[name])] == []


def test_the_noise_comes_to_be_what_pays_off():
    learner = make_dsrl(
        **{"algorithm.update_epoch": 150, "actor.optim.lr": 1e-2, "algorithm.gamma": 0.0}
    )
    policy = learner.engine.model
    for seed in range(4):
        feed(learner, steered_rollout(policy, seed))
    states = {"states": torch.randn(32, 5)}
    chosen = policy(forward_type="sac", forward_inputs=states)["actions"][:, 0].mean(0)
    assert float((chosen.detach() - torch.tensor([0.8, -0.8])).abs().max()) < 0.3
