"""Which learners take a rollout that ends before the others do."""

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.runners.embodied_runner import hands_over_parts

AHEAD = "algorithm.max_policy_age=1"
APART = "cluster.component_placement={actor:0,rollout:1,env:1}"


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        ("metaworld_async_ppo_mlp", [], True),
        ("gymnasium_sac_mlp", [AHEAD, APART], True),
        ("metaworld_ppo_mlp", [], False),
        ("metaworld_grpo_mlp", [AHEAD, APART], False),
        ("metaworld_async_ppo_mlp", ["env.train.rollout_epoch=2"], False),
        ("metaworld_async_ppo_mlp", ["env.train.auto_reset=false"], False),
    ],
)
def test_values_and_episodes_that_go_on_are_needed(recipe, overrides, expected):
    assert hands_over_parts(validate_cfg(build_config(recipe, overrides))) is expected
