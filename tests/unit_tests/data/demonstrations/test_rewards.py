"""The reward that a dataset was collected with, against that of a run."""

import json

import pytest

from rlinf.data.demonstrations.rewards import FACTS, check_rewards, reward_settings
from rlinf.data.lerobot.errors import DatasetError
from tests.unit_tests.data.demonstrations.datasets import write_dataset

ENV = {"env_type": "metaworld", "reward": "success", "reward_coef": 1.0, "max_episode_steps": 100}


def collected(folder, reward):
    write_dataset(folder, (4, 3))
    (folder / FACTS).write_text(json.dumps({"env_type": "metaworld", "reward": reward}))
    return str(folder)


def test_settings_are_the_keys_about_rewards():
    assert reward_settings(ENV) == {"reward": "success", "reward_coef": 1.0}


def test_the_same_reward_is_accepted_silently(tmp_path):
    said = []
    check_rewards(collected(tmp_path / "a", reward_settings(ENV)), ENV, said.append)
    # A key that one of them has no notion of says nothing.
    check_rewards(collected(tmp_path / "b", {"reward": "success"}), ENV, said.append)
    assert said == []


def test_another_reward_is_named_with_what_to_do(tmp_path):
    path = collected(tmp_path / "data", {"reward": "dense", "reward_coef": 0.1})
    with pytest.raises(DatasetError) as told:
        check_rewards(path, ENV, pytest.fail)
    said = str(told.value)
    assert f"{path} was collected with another reward than the run has" in said
    assert "reward dense and not success, reward_coef 0.1 and not 1.0" in said
    assert "env.train.reward=dense env.train.reward_coef=0.1" in said and "rlinf collect" in said


@pytest.mark.parametrize("facts", [None, {"policy": "scripted"}])
def test_a_dataset_that_does_not_say_is_told_once(tmp_path, facts):
    write_dataset(tmp_path / "data", (4, 3))
    if facts is not None:
        (tmp_path / "data" / FACTS).write_text(json.dumps(facts))
    said = []
    check_rewards(str(tmp_path / "data"), ENV, said.append)
    assert len(said) == 1 and "does not say which reward its episodes had" in said[0]
