"""Transitions of demonstrations beside a loop over frames."""

import pytest
import torch

from rlinf.data.demonstrations.load import DemonstrationFolders
from rlinf.data.demonstrations.transitions import ChunkTransitions
from rlinf.data.lerobot import DatasetError
from tests.unit_tests.data.demonstrations.datasets import write_dataset

LENGTHS = (5, 1, 8)
GAMMA = 0.9


@pytest.fixture(scope="module", params=[False, True], ids=["truncated", "terminated"])
def demos(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("d") / "d"
    return DemonstrationFolders([write_dataset(folder, LENGTHS, terminated=request.param)]).load()


@pytest.mark.parametrize("chunks", [1, 3])
def test_every_frame_is_a_transition(demos, chunks):
    data = ChunkTransitions(demos, chunks, GAMMA)
    assert len(data) == sum(LENGTHS)
    taken = data.take(torch.arange(len(data)))
    begin = 0
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            row, steps = begin + step, min(chunks, length - step)
            reward = sum(GAMMA**i * float(demos.rewards[row + i]) for i in range(steps))
            assert float(taken.rewards[row]) == pytest.approx(reward, rel=1e-5)
            ends = step + steps == length
            terminal = ends and bool(demos.terminated[episode])
            assert float(taken.bootstrap[row]) == pytest.approx(0 if terminal else GAMMA**steps)
            following = demos.final["states"][episode] if ends else demos.obs["states"][row + steps]
            assert torch.equal(taken.next_obs["states"][row], following)
            assert torch.equal(taken.obs["states"][row], demos.obs["states"][row])
            assert taken.valid[row].tolist() == [i < steps for i in range(chunks)]
            for i in range(steps):
                assert torch.equal(taken.actions[row, i], demos.actions[row + i])
        begin += length


def test_the_deviation_is_that_of_all_returns(demos):
    returns, begin = [], 0
    for length in LENGTHS:
        for step in range(length):
            rest = demos.rewards[begin + step : begin + length].tolist()
            returns.append(sum(GAMMA**i * r for i, r in enumerate(rest)))
        begin += length
    expected = float(torch.tensor(returns, dtype=torch.float64).std(correction=0))
    assert ChunkTransitions(demos, 2, GAMMA).return_deviation == pytest.approx(expected)


def test_frames_of_the_data_are_left_alone(demos):
    before = demos.obs["states"].clone()
    ChunkTransitions(demos, 1, GAMMA).take(torch.arange(len(demos)))
    assert torch.equal(demos.obs["states"], before)


def test_data_without_rewards_are_refused(demos):
    from dataclasses import replace

    with pytest.raises(DatasetError, match="have no rewards"):
        ChunkTransitions(replace(demos, rewards=None), 1, GAMMA)
