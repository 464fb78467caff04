"""What a user of a reward model sees when keys do not fit one another."""

import copy

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.config.scoring import uses_reward_model

USED = {
    "reward": {"use_reward_model": True, "model": {"model_path": "logs/m"}},
    "cluster.component_placement": {"actor": "0-3", "env": "0-1", "rollout": "2-3", "reward": "0"},
}
# Changes to a valid config, and what the message must contain.
WRONG = {
    "no model": (
        {"reward.model.model_path": None},
        "reward.model.model_path",
        "is missing: reward.use_reward_model is true",
        "name a run that trained one, such as logs/metaworld_reward_model_mlp",
    ),
    "no place": (
        {"cluster.component_placement": {"actor": "0-3", "env": "0-1", "rollout": "2-3"}},
        "has no place for reward, which reward.use_reward_model needs",
        'add it, for instance "reward: 0"',
    ),
    "shares that are not equal": (
        {"cluster.component_placement.reward": "0-2"},
        "env.train.total_num_envs = 16",
        "16 envs cannot be divided by 3 reward workers × 1 pipeline stages = 3",
    ),
    "rewards that do not count": (
        {"reward.reward_weight": 0.0},
        "the reward model would have no effect",
        "set it to another number, or reward.use_reward_model to false",
    ),
    "a threshold that is no probability": (
        {"reward.reward_threshold": 1.5},
        "reward.reward_threshold = 1.5",
    ),
    "a mode that does not exist": (
        {"reward.reward_mode": "history_buffer"},
        "must be one of: per_step, terminal",
    ),
    "a key of rewards of texts": (
        {"reward.reward_type": "math"},
        "a run of task_type embodied has no 'reward.reward_type'",
    ),
    "a learner from data": (
        {"algorithm.loss_type": "reward_model"},
        "learns from data.train_data_paths, and runner.task_type embodied has no data",
        "set runner.task_type: reward_model",
    ),
}


@pytest.fixture
def rewarded(embodied, change):
    """A valid config whose rewards come from a model."""
    return change(embodied, copy.deepcopy(USED))


def test_rewards_of_a_model_are_valid(rewarded, change):
    cfg = validate_cfg(rewarded)
    assert uses_reward_model(cfg)
    assert not uses_reward_model(validate_cfg(change(rewarded, {"reward": None})))
    assert (cfg.reward.reward_weight, cfg.reward.env_reward_weight) == (1.0, 0.0)


@pytest.mark.parametrize("case", WRONG)
def test_mistake(rewarded, change, complaint, case):
    changes, *expected = WRONG[case]
    message = complaint(change(rewarded, changes))
    for part in expected:
        assert part in message


def test_an_evaluation_needs_no_reward_model(rewarded, change):
    validate_cfg(change(rewarded, {"runner.only_eval": True, "reward.model.model_path": None}))


def recipe(*overrides):
    return build_config("metaworld_reward_model_mlp", overrides=list(overrides))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+algorithm.loss_type=embodied_bc", "trains a policy, and runner.task_type reward_model"),
        ("actor.model.model_type=mlp_policy", "is a model for embodied tasks"),
        ("actor.global_batch_size=null", "needs to know how many samples a step is made of"),
        ("+data.val_fraction=1", "data.val_fraction = 1"),
        ("+data.only_success=true", "a run of task_type reward_model has no 'data.only_success'"),
        ("+rollout.pipeline_stage_num=1", "a run of task_type reward_model has no 'rollout'"),
    ],
)
def test_mistake_in_training_a_model(complaint, override, words):
    assert words in complaint(recipe(override))


def test_a_reward_model_is_no_policy(embodied, change, complaint):
    changed = change(embodied, {"actor.model": {"model_type": "mlp_reward_model"}})
    assert "is a model for reward tasks, but runner.task_type needs embodied" in complaint(changed)
