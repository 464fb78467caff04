"""Datasets as rows of a replay buffer, against frames that are looked up one by one."""

import dataclasses

import pytest
import torch

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.replay import replay_trajectories
from rlinf.data.lerobot.errors import DatasetError
from rlinf.data.replay import TrajectoryReplayBuffer
from tests.unit_tests.data.demonstrations.datasets import write_dataset

GAMMA = 0.9


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("terminated", [False, True])
def test_rows_are_those_of_the_episodes(tmp_path, chunks, terminated):
    demos = DemonstrationFolders([write_dataset(tmp_path, (4, 7), terminated=terminated)]).load()
    buffer = TrajectoryReplayBuffer(50, gamma=GAMMA)
    buffer.add_trajectories(list(replay_trajectories(demos, chunks, dict)))
    rows = []
    for episode, length in enumerate((4, 7)):
        first = int(demos.begins[episode])
        for step in range(0, length, chunks):
            until = min(step + chunks, length)
            total = sum(GAMMA**i * (step + i) for i in range(until - step))
            if until == length:
                after = demos.final["states"][episode]
            else:
                after = demos.obs["states"][first + until]
            last = until == length
            actions = [demos.actions[first + min(step + i, length - 1)] for i in range(chunks)]
            rows.append((first + step, total, GAMMA ** (until - step), after, last, actions))
    assert len(buffer) == len(rows)
    seen = set()
    batch = buffer.sample(200)
    for i, serial in enumerate(batch.indices.tolist()):
        frame, total, discount, after, last, actions = rows[serial]
        assert torch.equal(batch.obs["states"][i], demos.obs["states"][frame])
        assert torch.equal(batch.actions[i], torch.stack(actions))
        assert float(batch.rewards[i]) == pytest.approx(total)
        assert float(batch.discounts[i]) == pytest.approx(discount)
        assert bool(batch.terminations[i]) == (last and terminated)
        assert bool(batch.truncations[i]) == (last and not terminated)
        assert torch.equal(batch.next_obs["states"][i], after)
        seen.add(serial)
    assert len(seen) == len(rows)


def test_critics_need_rewards(tmp_path):
    demos = DemonstrationFolders([write_dataset(tmp_path)]).load()
    without = dataclasses.replace(demos, rewards=None)
    with pytest.raises(DatasetError, match=r"have no rewards \('next\.reward'\)"):
        list(replay_trajectories(without, 1, dict))
