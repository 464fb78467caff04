"""Labels of observations for reward models, and which episodes are held out."""

import numpy as np
import pytest
import torch

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.success_frames import split_success_frames
from rlinf.data.lerobot import DatasetError
from rlinf.data.lerobot.writer import DatasetWriter
from tests.unit_tests.data.demonstrations.datasets import write_dataset


def write_flags(folder, episodes, final=True, flagged=True):
    """Episodes whose state at step t is `10 * episode + t`; flags are `next.success` of steps."""
    features = {
        "observation.state": {"dtype": "float32", "shape": (1,)},
        "action": {"dtype": "float32", "shape": (1,)},
    }
    if flagged:
        features["next.success"] = {"dtype": "bool", "shape": (1,)}
    with DatasetWriter.create(folder, 10, features, final_observations=final) as writer:
        for number, flags in enumerate(episodes):
            for step, flag in enumerate(flags):
                frame = {
                    "observation.state": np.float32([10 * number + step]),
                    "action": np.float32([0]),
                }
                solved = {"next.success": bool(flag)} if flagged else {}
                writer.add_frame(frame | solved, task="do it")
            state = np.float32([10 * number + len(flags)])
            writer.save_episode({"observation.state": state} if final else None)
    return folder


def labelled(folder, **further):
    """State to label, of those to train on and of those held out."""
    demos = DemonstrationFolders([folder]).load()
    parts = split_success_frames(demos, 0.5, 0, **further)
    return [
        dict(zip(part.obs["states"][:, 0].int().tolist(), part.labels.tolist(), strict=True))
        for part in parts
    ]


def test_an_observation_has_the_label_of_the_step_that_led_to_it(tmp_path):
    episodes = [[0, 1, 0], [0, 0], [0, 1, 0], [0, 0]]
    train, held_out = labelled(write_flags(tmp_path / "d", episodes))
    every = train | held_out
    assert every == {
        **{1: False, 2: True, 3: False, 11: False, 12: False},
        **{21: False, 22: True, 23: False, 31: False, 32: False},
    }, "first observations have no label, final ones do"


def test_success_may_persist(tmp_path):
    episodes = [[0, 1, 0], [0, 0], [1, 0], [0]]
    train, held_out = labelled(write_flags(tmp_path / "d", episodes), persists=True)
    every = train | held_out
    assert [state for state, label in every.items() if label] in ([2, 3, 21, 22], [21, 22, 2, 3])


def test_the_last_frame_stands_for_what_follows_where_nothing_was_kept(tmp_path):
    episodes = [[0, 0, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    train, held_out = labelled(write_flags(tmp_path / "d", episodes, final=False))
    every = train | held_out
    assert every == {1: False, 2: True, 11: False, 12: False} | {
        21: False,
        22: True,
        31: False,
        32: False,
    }


def test_whole_episodes_of_both_kinds_are_held_out(tmp_path):
    episodes = [[0, 1], [0, 0]] * 5
    train, held_out = labelled(write_flags(tmp_path / "d", episodes))
    of_train, of_others = ({state // 10 for state in part} for part in (train, held_out))
    assert not of_train & of_others and of_train | of_others == set(range(10))
    for part in (of_train, of_others):
        assert {number % 2 for number in part} == {0, 1}
    assert len(of_others) == 4
    again = labelled(tmp_path / "d")
    assert again == [train, held_out], "the draw is that of the seed"


@pytest.mark.parametrize(
    ("episodes", "flagged", "words"),
    [
        ([[0, 1], [0, 1]], True, "2 episodes of data.train_data_paths solved their task and 0 did"),
        ([[0, 0]] * 3, True, "0 episodes of data.train_data_paths solved their task and 3 did not"),
        ([[0, 1], [0, 0]], False, "have no feature 'next.success'"),
    ],
)
def test_data_that_say_too_little_are_refused(tmp_path, episodes, flagged, words):
    with pytest.raises(DatasetError, match=words):
        labelled(write_flags(tmp_path / "d", episodes, flagged=flagged))


def test_pictures_stay_on_the_host(tmp_path):
    write_dataset(tmp_path / "d", (4, 3, 5, 6), success=[1, 0, 1, 0], pictures=True)
    demos = DemonstrationFolders([tmp_path / "d"]).load(["states", "main_images"])
    train, _ = split_success_frames(demos, 0.2, 0)
    moved = train.to(torch.device("meta"))
    assert moved.obs["states"].is_meta and not moved.obs["main_images"].is_meta
    # Step `t` shows 10 * t: the picture of a final observation is that of no frame.
    assert int(train.obs["main_images"][train.labels][0].flatten()[0]) in (40, 50)
