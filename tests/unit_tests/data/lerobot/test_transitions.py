"""Episodes as transitions: ends, rewards and final observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from rlinf.data.lerobot import DatasetError, DatasetWriter, LeRobotDataset, episodes  # noqa: E402


def _scalar(kind: str) -> dict[str, Any]:
    return {"dtype": kind, "shape": (1,)}


STATE = {"observation.state": {"dtype": "float32", "shape": (2,)}}
ACTION = {"action": {"dtype": "float32", "shape": (2,)}}
REWARD = {"next.reward": _scalar("float32")}
ENDS = {"next.terminated": _scalar("bool"), "next.truncated": _scalar("bool")}


def _write(
    folder: Path, features: dict[str, Any], ends: list[dict[str, bool]], final: bool = False
) -> LeRobotDataset:
    """Writes one episode of three frames for each entry of `ends`, which says how it ends."""
    with DatasetWriter.create(folder, 10, features, final_observations=final) as writer:
        for end in ends:
            for number in range(3):
                frame = {name: number == 2 and end.get(name, False) for name in features}
                frame["observation.state"] = np.full(2, number)
                frame["action"] = np.full(2, number / 10)
                frame["next.reward"] = number
                writer.add_frame({name: frame[name] for name in features}, "reach")
            writer.save_episode({"observation.state": np.full(2, 9.0)} if final else None)
    return LeRobotDataset(folder)


def test_final_observations_keep_every_transition(tmp_path: Path) -> None:
    ends = [{"next.terminated": True}, {"next.truncated": True}, {}]
    features = {**STATE, **ACTION, **REWARD, **ENDS}
    dataset = _write(tmp_path / "d", features, ends, final=True)
    terminated, truncated, cut = episodes(dataset)
    for transitions in (terminated, truncated, cut):
        assert len(transitions) == 3
        assert transitions.rewards.tolist() == [0.0, 1.0, 2.0]
        assert transitions.observations["state"][:, 0].tolist() == [0.0, 1.0, 2.0]
        assert transitions.final_observation["state"].tolist() == [9.0, 9.0]
        assert transitions.tasks == ["reach"] * 3
    assert terminated.terminations.tolist() == [False, False, True]
    assert terminated.truncations.tolist() == [False, False, False]
    assert truncated.terminations.tolist() == cut.terminations.tolist() == [False] * 3
    assert truncated.truncations.tolist() == cut.truncations.tolist() == [False, False, True]


def test_without_them_the_last_frame_of_an_open_end_is_the_final_observation(
    tmp_path: Path,
) -> None:
    features = {**STATE, **ACTION, **REWARD, "next.done": _scalar("bool")}
    done, cut = episodes(_write(tmp_path / "d", features, [{"next.done": True}, {}]))
    assert len(done) == 3 and done.terminations.tolist() == [False, False, True]
    assert done.final_observation is None
    assert len(cut) == 2 and cut.truncations.tolist() == [False, True]
    assert cut.final_observation["state"].tolist() == [2.0, 2.0]
    assert np.allclose(cut.actions[:, 0], [0.0, 0.1])
    assert cut.rewards.tolist() == [0.0, 1.0]


def test_a_dataset_without_rewards_says_so(tmp_path: Path) -> None:
    (transitions,) = episodes(_write(tmp_path / "d", {**STATE, **ACTION}, [{}]))
    assert transitions.rewards is None


def test_what_has_no_transitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no feature 'action'"):
        list(episodes(_write(tmp_path / "a", {**STATE}, [{}])))
    features = {**STATE, **ACTION, "next.done": _scalar("bool")}
    with DatasetWriter.create(tmp_path / "b", 10, features) as writer:
        for number in range(3):
            values = {"observation.state": np.zeros(2), "action": np.zeros(2)}
            writer.add_frame({**values, "next.done": number == 1}, "reach")
        writer.save_episode()
    with pytest.raises(DatasetError, match="episode 0 ends at frame 1 and has 3 frames"):
        list(episodes(LeRobotDataset(tmp_path / "b")))
    with DatasetWriter.create(tmp_path / "c", 10, {**STATE, **ACTION}) as writer:
        writer.add_frame({"observation.state": np.zeros(2), "action": np.zeros(2)}, "reach")
        with pytest.raises(DatasetError, match="final_observations=True"):
            writer.save_episode({"observation.state": np.zeros(2)})
        writer.save_episode()
    with pytest.raises(DatasetError, match="episode 0 has one frame and no end"):
        list(episodes(LeRobotDataset(tmp_path / "c")))
