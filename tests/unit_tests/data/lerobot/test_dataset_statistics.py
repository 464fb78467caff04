"""Statistics of datasets as OpenVLA keeps them."""

import json

import numpy as np
import pytest

from rlinf.data.lerobot import DatasetError, LeRobotDataset
from rlinf.data.lerobot.__main__ import main
from rlinf.data.lerobot.dataset_statistics import dataset_statistics
from rlinf.models.embodiment.openvla.statistics import action_statistics
from tests.unit_tests.data.demonstrations.datasets import write_dataset


def test_statistics_are_exact_over_all_frames(tmp_path):
    folder = write_dataset(tmp_path / "toy", (30, 7))
    found = dataset_statistics(LeRobotDataset(folder), unscaled=[-1])
    episodes = list(LeRobotDataset(folder).episodes(["action", "observation.state"]))
    for key, name in (("action", "action"), ("proprio", "observation.state")):
        rows = np.concatenate([episode.values[name] for episode in episodes]).astype(np.float64)
        np.testing.assert_allclose(found[key]["q01"], np.quantile(rows, 0.01, axis=0))
        np.testing.assert_allclose(found[key]["q99"], np.quantile(rows, 0.99, axis=0))
        np.testing.assert_allclose(found[key]["mean"], rows.mean(0))
        np.testing.assert_allclose(found[key]["std"], rows.std(0))
    assert found["action"]["mask"] == [True, False]
    assert (found["num_transitions"], found["num_trajectories"]) == (37, 2)


def test_the_command_writes_what_a_model_reads(tmp_path, capsys):
    folders = [str(write_dataset(tmp_path / name, seed=i)) for i, name in enumerate("ab")]
    assert main(["statistics", *folders, "--out", str(tmp_path)]) == 0
    file = tmp_path / "dataset_statistics.json"
    assert capsys.readouterr().out.strip() == str(file)
    assert json.loads(file.read_text()).keys() == {"a", "b"}
    own = action_statistics(tmp_path, "b")
    assert len(own["q01"]) == 2 and own["mask"] == [True, True]
    for key, words in ((None, "statistics of a, b: choose"), ("c", "model.unnorm_key is 'c'")):
        with pytest.raises(ValueError, match=words):
            action_statistics(tmp_path, key)


def test_a_number_that_actions_do_not_have_is_refused(tmp_path):
    dataset = LeRobotDataset(write_dataset(tmp_path / "toy"))
    with pytest.raises(DatasetError, match="there is no number 2"):
        dataset_statistics(dataset, unscaled=[2])
