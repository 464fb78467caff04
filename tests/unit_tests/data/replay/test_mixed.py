"""Batches of two buffers."""

from __future__ import annotations

import pytest
import torch

from rlinf.data.replay import MixedReplay, Priorities, TrajectoryReplayBuffer
from tests.unit_tests.data.replay.test_buffer import episode, equal


def demos(folder, capacity: int = 12, **kwargs) -> TrajectoryReplayBuffer:
    source = TrajectoryReplayBuffer(12)
    for length in (3, 4, 5):
        trajectory = episode(length)
        trajectory.obs = {"state": torch.full((length, 1, 2), -float(length))}
        source.add_trajectories([trajectory])
    source.save_checkpoint(folder)
    buffer = TrajectoryReplayBuffer(capacity, overwrite=False, **kwargs)
    assert buffer.load_checkpoint(folder, demonstrations=True) == []
    return buffer


def mixed(folder, **kwargs) -> MixedReplay:
    replay = TrajectoryReplayBuffer(20, **kwargs)
    replay.add_trajectories([episode(10)])
    return MixedReplay(replay, demos(folder, **kwargs))


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (0.25, 2), (0.5, 5), (1.0, 9)])
def test_a_share_of_a_batch_is_demonstrations(ratio, expected, tmp_path):
    both = mixed(tmp_path)
    both.demo_ratio = ratio
    batch = both.sample(9)
    is_demo = batch.obs["state"][:, 0] < 0
    assert len(batch) == 9 and int(is_demo.sum()) == expected
    assert torch.equal(is_demo, both.is_demo(9))


def test_demonstrations_are_not_overwritten(tmp_path):
    buffer = demos(tmp_path, capacity=13)
    with pytest.raises(ValueError, match="does not overwrite"):
        buffer.add_trajectories([episode(3)])
    buffer.add_trajectories([episode(1)])
    assert len(buffer) == 13


def test_ranks_share_demonstrations(tmp_path):
    shares = [demos(tmp_path, rank=rank, world_size=2) for rank in range(2)]
    seen = [set(share.sample(200).obs["state"][:, 0].tolist()) for share in shares]
    assert seen == [{-3.0, -5.0}, {-4.0}]


def test_priorities_go_to_the_buffer_that_was_drawn_from(tmp_path):
    both = mixed(tmp_path, priorities=Priorities(alpha=1, epsilon=1e-9))
    for part in (both.replay, both.demos):
        part.update_priorities(torch.arange(len(part)), torch.full((len(part),), 1e-6))
    both.update_priorities(torch.tensor([9, 8, 2, 2]), torch.tensor([1.0, 1.0, 1.0, 1.0]))
    batch = both.sample(400)
    assert set(batch.indices[:200].tolist()) == {8, 9}
    assert set(batch.indices[200:].tolist()) == {2}


def test_both_buffers_are_saved(tmp_path):
    both = mixed(tmp_path / "demos")
    both.save_checkpoint(tmp_path / "saved")
    other = MixedReplay(
        TrajectoryReplayBuffer(20, seed=5), TrajectoryReplayBuffer(12, overwrite=False)
    )
    assert not other.is_ready()
    assert other.load_checkpoint(tmp_path / "saved") == []
    assert other.is_ready() and len(other) == 22
    assert other.get_stats() == both.get_stats()
    assert other.get_stats()["demo_num_trajectories"] == 3
    assert equal(other.sample(30), both.sample(30))


def test_a_ratio_outside_of_its_range_is_refused(tmp_path):
    with pytest.raises(ValueError, match="demo_ratio is 1.5"):
        mixed(tmp_path).demo_ratio = 1.5


def test_many_batches_are_each_mixed(tmp_path):
    both = mixed(tmp_path)
    batches = list(both.sample_batches(7, 10))
    assert len(batches) == 7
    for batch in batches:
        assert torch.equal(batch.obs["state"][:, 0] < 0, both.is_demo(10))
    assert len({tuple(batch.indices.tolist()) for batch in batches}) == 7


def test_a_snapshot_of_both_is_of_one_moment(tmp_path):
    both = mixed(tmp_path / "a")
    write = both.snapshot(tmp_path / "b")
    expected = both.sample(30)
    both.replay.add_trajectories([episode(5)])
    write()
    again = mixed(tmp_path / "c")
    assert again.load_checkpoint(tmp_path / "b") == []
    assert torch.equal(again.sample(30).indices, expected.indices)
