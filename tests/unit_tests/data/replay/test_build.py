"""Buffers as a config describes them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rlinf.config.schema.replay import DemoBufferConfig, ReplayBufferConfig
from rlinf.data.replay import TrajectoryReplayBuffer
from rlinf.data.replay.build import ReplayPlace, build_mixed, build_replay
from tests.unit_tests.data.replay.test_buffer import episode


def test_the_keys_of_a_section_reach_the_buffer(tmp_path):
    section = ReplayBufferConfig(
        # Over both ranks.
        cache_size=2e2,
        sample_window_size=10,
        min_buffer_size=5,
        priorities={},
        enable_cache=False,
    )
    buffer = build_replay(section, ReplayPlace(tmp_path, rank=1, world_size=2))
    buffer.add_trajectories([episode(2)])
    assert not buffer.is_ready()
    buffer.add_trajectories([episode(10)])
    assert buffer.is_ready() and buffer.prioritized
    assert buffer.get_stats()["cache_size"] == 100
    assert set(buffer.sample(300).indices.tolist()) == set(range(7, 12))
    assert list((tmp_path / "replay" / "replay_1" / "working").glob("frames_*"))
    buffer.close()


def test_demonstrations_are_loaded_for_each_rank(tmp_path):
    source = TrajectoryReplayBuffer(20)
    source.add_trajectories([episode(4), episode(6)])
    source.save_checkpoint(tmp_path / "demos")
    demos = DemoBufferConfig(load_path=str(tmp_path / "demos"), demo_ratio=0.25)
    mixed = build_mixed(ReplayBufferConfig(), demos, ReplayPlace(tmp_path, rank=1, world_size=2))
    assert len(mixed.demos) == mixed.demos.capacity == 6 and mixed.num_demos(8) == 2
    mixed.close()
    with pytest.raises(ValueError, match="no episode for rank 2 of 3"):
        build_mixed(ReplayBufferConfig(), demos, ReplayPlace(tmp_path, rank=2, world_size=3))


def test_keys_that_make_no_sense_are_refused():
    with pytest.raises(ValidationError, match="cache_size"):
        ReplayBufferConfig(cache_size=0)
    with pytest.raises(ValidationError, match="capacity"):
        ReplayBufferConfig(capacity=5)
