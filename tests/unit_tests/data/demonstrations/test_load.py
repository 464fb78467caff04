"""Datasets in memory: names, shapes, ends, and what does not go together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.names import (
    features_of,
    observation_of,
    observations_in,
    views_of,
)
from rlinf.data.demonstrations.sampling import ChunkSamples
from rlinf.data.demonstrations.transitions import ChunkTransitions
from rlinf.data.lerobot import DatasetError, LeRobotDataset
from tests.unit_tests.data.demonstrations.datasets import write_dataset


@pytest.mark.parametrize(
    ("name", "shape", "feature"),
    [
        ("states", (4,), "observation.state"),
        ("main_images", (8, 8, 3), "observation.images.main"),
        ("wrist_images", (8, 8, 3), "observation.images.wrist"),
        ("wrist_images", (1, 8, 8, 3), "observation.images.wrist_0"),
        ("extra_view_images", (1, 8, 8, 3), "observation.images.extra_view_0"),
        ("touch", (2, 3), "observation.touch"),
    ],
)
def test_names_go_there_and_back(name, shape, feature):
    assert features_of(name, views_of(name, shape)) == [feature]
    assert observation_of(feature) == name


def test_views_are_in_the_order_of_their_numbers():
    found = observations_in(reversed(features_of("extra_view_images", 12)), None, "here")
    assert found == {"extra_view_images": features_of("extra_view_images", 12)}


def test_a_feature_can_be_given_another_name():
    features = ["observation.state", "observation.images.top", "action"]
    found = observations_in(features, {"main_images": "observation.images.top"}, "here")
    assert found == {"states": ["observation.state"], "main_images": ["observation.images.top"]}
    with pytest.raises(DatasetError, match=r"observations.main_images is 'observation.images.to'"):
        observations_in(features, {"main_images": "observation.images.to"}, "here")
    with pytest.raises(DatasetError, match="has no observations"):
        observations_in(["action"], None, "here")


def test_frames_of_several_folders_are_put_one_after_the_other(tmp_path):
    one = write_dataset(tmp_path / "one", (4, 3), success=(True, False))
    two = write_dataset(tmp_path / "two", (5,), terminated=True, seed=1)
    demos = DemonstrationFolders([one, two]).load()
    assert len(demos) == 12 and demos.num_episodes == 3
    assert demos.begins.tolist() == [0, 4, 7, 12]
    assert demos.ends.tolist() == [4] * 4 + [7] * 3 + [12] * 5
    assert demos.terminated.tolist() == [False, False, True]
    assert demos.success.tolist() == [True, False, True]
    assert demos.rewards.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]
    stored = LeRobotDataset(two).episode(0)
    np.testing.assert_array_equal(demos.obs["states"][7:], stored.values["observation.state"])
    np.testing.assert_array_equal(demos.actions[7:], stored.values["action"])
    np.testing.assert_array_equal(
        demos.final["states"][2], stored.final_observation["observation.state"]
    )


def test_episodes_can_be_left_out(tmp_path):
    folder = write_dataset(tmp_path / "d", (4, 3, 2), success=(False, True, True))
    folders = DemonstrationFolders([folder])
    assert folders.load(only_success=True).begins.tolist() == [0, 3, 5]
    assert DemonstrationFolders([folder], max_episodes=2).load().begins.tolist() == [0, 4, 7]
    first_success = DemonstrationFolders([folder], max_episodes=1).load(only_success=True)
    assert first_success.begins.tolist() == [0, 3]
    failed = write_dataset(tmp_path / "failed", (2,), success=False)
    with pytest.raises(DatasetError, match="no episode is left"):
        DemonstrationFolders([failed]).load(only_success=True)


def test_pictures_are_read_if_they_are_wanted(tmp_path):
    folders = DemonstrationFolders([write_dataset(tmp_path / "d", (3,), pictures=True)])
    demos = folders.load(["states", "extra_view_images"])
    assert set(demos.obs) == {"states", "extra_view_images"}
    views = demos.obs["extra_view_images"]
    assert views.shape == (3, 2, 8, 8, 3) and views.dtype == torch.uint8
    assert views[:, :, 0, 0, 0].tolist() == [[1, 2], [11, 12], [21, 22]]
    assert demos.final["extra_view_images"][0, :, 0, 0, 0].tolist() == [31, 32]
    obs, action = folders.first_frame()
    assert obs["main_images"].shape == (1, 8, 8, 3) and action.shape == (1, 2)


def test_choices_are_whole_numbers(tmp_path):
    folder = write_dataset(tmp_path / "d", (3,), choices=True, act=lambda state: np.array([1, 2]))
    assert DemonstrationFolders([folder]).load().actions.dtype == torch.int64


def test_what_does_not_go_together_is_refused(tmp_path):
    one = write_dataset(tmp_path / "one")
    other = write_dataset(tmp_path / "other", obs_dim=4)
    with pytest.raises(DatasetError, match=r"'states' has the shape \[\(4,\)\] in .*other"):
        DemonstrationFolders([one, other])
    seen = write_dataset(tmp_path / "seen", pictures=True)
    with pytest.raises(DatasetError, match="one lacks 'extra_view_images', which .*seen has"):
        DemonstrationFolders([one, seen])
    with pytest.raises(DatasetError, match="has no observation 'main_images'; it has states"):
        DemonstrationFolders([one]).load(["main_images"])
    with pytest.raises(DatasetError, match="is not a LeRobot dataset"):
        DemonstrationFolders([tmp_path / "nowhere"])


def test_texts_of_tasks_are_observations(tmp_path):
    one = write_dataset(tmp_path / "one", (4, 3), tasks=("open", "close"))
    two = write_dataset(tmp_path / "two", (2,), tasks=("close",))
    folders = DemonstrationFolders([one, two])
    assert folders.first_frame()[0]["task_descriptions"] == ["open"]
    demos = folders.load(["states", "task_descriptions"]).to(torch.device("cpu"))
    texts = demos.obs["task_descriptions"]
    assert texts[:] == ["open"] * 4 + ["close"] * 5
    assert texts.kinds == ["open", "close"] and len(texts) == 9
    assert texts[torch.tensor([8, 0])] == ["close", "open"]
    assert demos.final["task_descriptions"][:] == ["open", "close", "close"]
    obs, _ = ChunkSamples(demos, 2).take(torch.tensor([3, 4]))
    assert obs["task_descriptions"] == ["open", "close"]
    following = ChunkTransitions(demos, 2, 0.9).take(torch.tensor([0, 3])).next_obs
    assert following["task_descriptions"] == ["open", "open"]


def test_what_the_episodes_came_to(tmp_path):
    path = write_dataset(tmp_path / "data", (4, 3), success=[True, False])
    # Rewards are 0, 1, 2, ... in each episode.
    expected = {"return": (6 + 3) / 2, "success_once": 0.5}
    assert DemonstrationFolders([path]).load().outcomes() == expected
