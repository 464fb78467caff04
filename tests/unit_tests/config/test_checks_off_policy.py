"""What a user of a replay buffer sees when keys do not fit one another."""

import copy

import pytest

from rlinf.config import batch_arithmetic, validate_cfg

SAC = {
    "algorithm": {
        "adv_type": "embodied_sac",
        "loss_type": "embodied_sac",
        "update_epoch": 800,
    },
    "actor.global_batch_size": 256,
    "actor.micro_batch_size": ...,
    "actor.model": {"model_type": "mlp_policy", "add_q_head": True},
}
# Changes to a valid config, and what the message must contain.
WRONG = {
    "an advantage that nobody computes": (
        {"algorithm.adv_type": "gae"},
        'algorithm.adv_type = "gae"',
        "has no effect: loss_type embodied_sac computes no advantages",
        "set it to embodied_sac",
    ),
    "batches without a size": (
        {"actor.global_batch_size": None},
        "actor.global_batch_size",
        "is missing: how many transitions of the replay buffer a gradient step is made on",
    ),
    "a buffer that is never ready": (
        {"algorithm.replay_buffer": {"cache_size": 10, "min_buffer_size": 20}},
        "algorithm.replay_buffer.min_buffer_size = 20",
        "must not exceed cache_size, 10",
    ),
    "critics that are not there": (
        {"actor.model.add_q_head": False},
        "actor.model.add_q_head = false",
        "must be true: algorithm.loss_type embodied_sac trains Q-functions",
    ),
    "more heads than there are": (
        {"algorithm.critic_subsample_size": 3},
        "algorithm.critic_subsample_size = 3",
        "must not exceed actor.model.num_q_heads, 2: none is drawn twice",
    ),
    "no heads at all": (
        {"algorithm.critic_subsample_size": 0},
        "algorithm.critic_subsample_size = 0",
        "must be -1 or null (all Q-functions), or how many, at least 1",
    ),
    "actions that are clipped": (
        {"actor.model.distribution": "gaussian"},
        'actor.model.distribution = "gaussian"',
        "set it to squashed_gaussian",
    ),
    "a policy with chance for TD3": (
        {"algorithm.loss_type": "embodied_td3"},
        "actor.model.distribution",
        "set it to deterministic",
    ),
    "critics of CrossQ for SAC": (
        {"actor.model.q_head_type": "crossq"},
        'actor.model.q_head_type = "crossq"',
        "set it to default, or use another loss_type",
    ),
    "critics of SAC for CrossQ": (
        {"algorithm.loss_type": "embodied_crossq"},
        "actor.model.q_head_type",
        "set it to crossq",
        "cluster.component_placement.actor",
        "embodied_crossq normalises over whole batches",
    ),
    "a batch that ranks cannot share": (
        {"actor.global_batch_size": 258},
        "actor.global_batch_size = 258",
        "global_batch_size 258 cannot be divided by 4",
    ),
    "a key of another algorithm": (
        {"algorithm.entropy_tuning": {"target": 3}},
        "algorithm.entropy_tuning.target",
        "unknown key",
    ),
}


def test_rollouts_need_not_be_whole_batches(embodied, change):
    cfg = validate_cfg(change(embodied, SAC))
    assert cfg.algorithm.replay_buffer.cache_size == 1_000_000
    lines = batch_arithmetic(cfg, {"actor": 4, "env": 2})
    expected = (
        "16 envs × 100 steps × 1 epoch = 1600 samples → 800 gradient steps on 256 transitions"
        " = 0.5 gradient steps per env step"
    )
    assert expected in lines


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(embodied, change, complaint, name):
    changes, *expected = WRONG[name]
    said = complaint(change(change(embodied, copy.deepcopy(SAC)), changes))
    for text in expected:
        assert text in said


def test_rollouts_are_not_augmented_by_the_learner(embodied, change, complaint):
    said = complaint(change(embodied, {"actor.enable_drq": True}))
    assert "shifts pictures of a replay buffer" in said and "random_shift of cnn_policy" in said


def test_an_advantage_is_needed_by_all_others(embodied, change, complaint):
    said = complaint(change(embodied, {"algorithm.adv_type": "embodied_sac"}))
    assert "computes no advantages, and loss_type actor_critic needs some" in said
