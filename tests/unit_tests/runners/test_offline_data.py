"""A run whose demonstrations are missing or rewarded otherwise is refused before it starts."""

import json

import pytest

from rlinf.config import build_config, validate_cfg
from rlinf.runners.offline_data import require_demonstrations
from tests.unit_tests.data.demonstrations.datasets import write_dataset


def make(path):
    overrides = [f"algorithm.demo_buffer.load_path={path}"]
    return validate_cfg(build_config("metaworld_rlpd_mlp", overrides))


def test_missing_demonstrations_are_told_with_the_way_to_make_them(tmp_path):
    missing = tmp_path / "none"
    with pytest.raises(SystemExit) as told:
        require_demonstrations(make(missing))
    assert str(told.value).startswith(
        f"error: algorithm.demo_buffer.load_path: there is no dataset at {missing}"
    )
    assert str(told.value).endswith("; make it with: rlinf collect metaworld_rlpd_mlp")


def test_runs_that_need_none_go_on(tmp_path):
    require_demonstrations(make(tmp_path))
    require_demonstrations(validate_cfg(build_config("metaworld_sac_mlp", [])))
    require_demonstrations(validate_cfg(build_config("metaworld_ppo_mlp", [])))


def test_another_reward_is_refused_before_workers_start(tmp_path):
    write_dataset(tmp_path / "data", (4, 3))
    facts = {"reward": {"reward": "dense", "reward_coef": 1.0}}
    (tmp_path / "data" / "meta" / "collect.json").write_text(json.dumps(facts))
    with pytest.raises(SystemExit, match="reward dense and not success.*env.train.reward=dense"):
        require_demonstrations(make(tmp_path / "data"))
