"""Whatever is in a config, the answer is a config or a ConfigError."""

import copy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlinf.config import ConfigError, validate_cfg

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**40),
    st.floats(),
    st.text(max_size=8).filter(lambda text: "${" not in text),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(), max_size=2),
)
PLACES = [
    "cluster",
    "cluster.num_nodes",
    "cluster.component_placement",
    "cluster.node_groups",
    "runner",
    "runner.task_type",
    "runner.resume_dir",
    "algorithm",
    "algorithm.adv_type",
    "algorithm.group_size",
    "env.train",
    "env.train.env_type",
    "env.train.total_num_envs",
    "env.eval.group_size",
    "rollout.model",
    "rollout.pipeline_stage_num",
    "actor.model.model_type",
    "actor.model.num_action_chunks",
    "actor.global_batch_size",
    "actor.optim",
    "nonsense",
]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(changes=st.dictionaries(st.sampled_from(PLACES), VALUES, min_size=1, max_size=3))
def test_whatever_is_wrong_is_a_config_error(embodied, change, changes):
    config = copy.deepcopy(embodied)
    # Longer paths first, so that a section that is replaced by a value is replaced last.
    for path in sorted(changes, key=len, reverse=True):
        change(config, {path: changes[path]})
    try:
        validate_cfg(config)
    except ConfigError as error:
        assert error.problems
        assert "pydantic" not in str(error)
