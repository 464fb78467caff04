"""Rules between the keys of a run with live traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.config import ConfigError, build_config, validate_cfg

CONFIGS = Path(__file__).resolve().parents[3] / "examples" / "coding_online_rl" / "config"


def check(*overrides):
    return validate_cfg(build_config("coding_online", list(overrides), CONFIGS))


def test_the_recipe_is_valid():
    cfg = check()
    assert cfg.runner.task_type == "coding_online_rl" and cfg.rollout_server.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["cluster.component_placement.rollout_server=0-1"], "there is one endpoint"),
        (["~cluster.component_placement.rollout_server"], "rollout_server"),
        (["+rollout.enable_offload=true"], "clients do not wait"),
        (["+runner.weight_sync_interval=2"], "only 1 is allowed"),
        (["algorithm.max_policy_age=0"], "leaves no session"),
        (["+algorithm.sampling_params.do_sample=false"], "learns from what is drawn from it"),
        (["algorithm.group_size=4"], "a group of its own"),
        (["+algorithm.dynamic_sampling=true"], "clients send what they like"),
        (["+rollout_server.patience=99999"], "cluster.timeouts.channel"),
        (["+rollout_server.prot=1"], "did you mean 'port'"),
        (["data.mistakes=1.5"], "data.mistakes"),
    ],
)
def test_mistakes_are_named(overrides, said):
    with pytest.raises(ConfigError) as caught:
        check(*overrides)
    assert said in str(caught.value)
