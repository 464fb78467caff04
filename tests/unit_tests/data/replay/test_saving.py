"""What a buffer saves comes back: exactly, shared out anew, or as an error that names the file."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from rlinf.data.replay import (
    Priorities,
    ReplayDamaged,
    ReplayDiskError,
    SavedShard,
    TrajectoryReplayBuffer,
    find_shards,
)
from tests.unit_tests.data.replay.reference import Envs, SlowReplay, pick, same
from tests.unit_tests.data.replay.test_buffer import SEGMENT, cases, check, episode, equal

STORAGES = [
    {"folder": False},
    {"folder": True},
    {"folder": True, "auto_save": True},
    {"folder": True, "enable_cache": False},
]


def make(case, storage, place: Path, **kwargs) -> TrajectoryReplayBuffer:
    """Makes a buffer in a folder of its own."""
    storage = dict(storage)
    folder = place if storage.pop("folder") else None
    settings_ = {"gamma": 0.9, "discount_per": case["per"], "segment_bytes": SEGMENT}
    return TrajectoryReplayBuffer(case["capacity"], folder=folder, **(settings_ | storage | kwargs))


@settings(max_examples=12, deadline=None)
@given(
    case=cases,
    before=st.sampled_from(STORAGES),
    after=st.sampled_from(STORAGES),
    prioritised=st.booleans(),
)
def test_a_restored_buffer_goes_on_as_if_nothing_had_happened(
    case, before, after, prioritised, tmp_path_factory
):
    place = tmp_path_factory.mktemp("replay")
    priorities = Priorities() if prioritised else None
    random = np.random.default_rng(case["seed"])
    envs = Envs(random, case["envs"], case["chunk"])
    slow = SlowReplay(case["capacity"], 0.9, case["per"])
    one = make(case, before, place / "one", priorities=priorities)

    def step(buffers, steps):
        trajectory = envs.rollout(steps, streams=case["streams"])
        slow.add(trajectory)
        for buffer in buffers:
            buffer.add_trajectories([trajectory])

    for number, steps in enumerate(case["steps"]):
        step([one], steps)
        if prioritised and one.num_drawable:
            drawn = one.sample(4).indices
            one.update_priorities(drawn, torch.from_numpy(random.random(4)))
        one.save_checkpoint(place / f"checkpoint_{number}")
    two = make(case, after, place / "two", priorities=priorities, seed=99)
    assert two.load_checkpoint(place / f"checkpoint_{number}") == []
    assert two.get_stats() == one.get_stats()
    for _ in range(2):
        if one.num_drawable:
            assert equal(one.sample(32, 2), two.sample(32, 2))
            assert equal(one.sample_windows(8, 3), two.sample_windows(8, 3))
        step([one, two], 5)
    assert two.get_stats() == one.get_stats()
    check(two, slow)
    for buffer in (one, two):
        buffer.close()


@settings(max_examples=10, deadline=None)
@given(
    case=cases, ranks=st.integers(1, 3), later=st.integers(1, 4), storage=st.sampled_from(STORAGES)
)
def test_another_number_of_ranks_shares_out_all_episodes(
    case, ranks, later, storage, tmp_path_factory
):
    place = tmp_path_factory.mktemp("replay")
    slow = [SlowReplay(case["capacity"], 0.9, case["per"]) for _ in range(ranks)]
    envs = Envs(np.random.default_rng(case["seed"]), case["envs"], case["chunk"])
    for rank in range(ranks):
        buffer = make(case, storage, place / f"{rank}", rank=rank, world_size=ranks)
        for steps in case["steps"]:
            trajectory = envs.rollout(steps, streams=case["streams"])
            buffer.add_trajectories([trajectory])
            slow[rank].add(trajectory)
        buffer.save_checkpoint(place / "saved")
        buffer.close()
    expected = {}
    for part in slow:
        for row in part.rows:
            if row.drawable:
                expected[row.obs["state"][0].item()] = part.transition(row, 2)
    case = case | {"capacity": ranks * case["capacity"]}
    found = []
    for rank in range(later):
        buffer = make(case, storage, place / f"new {rank}", rank=rank, world_size=later)
        notes = buffer.load_checkpoint(place / "saved")
        assert bool(notes) == (ranks != later)
        if buffer.num_drawable:
            batch = buffer.sample(40 * buffer.num_drawable, 2)
            first = {batch.obs["state"][i, 0].item(): i for i in range(len(batch))}
            found += first
            for key, i in list(first.items())[:20]:
                assert same(pick(batch.next_obs, i), expected[key]["next_obs"])
                assert batch.rewards[i].item() == pytest.approx(
                    expected[key]["rewards"], rel=1e-5, abs=1e-5
                )
                assert batch.steps[i].item() == expected[key]["steps"]
        buffer.close()
    assert sorted(found) == sorted(expected)


def inodes(folder: Path, table: str) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob(f"**/{table}_*")}


@pytest.mark.parametrize("storage", STORAGES[1:])
def test_a_checkpoint_writes_only_what_has_changed(storage, tmp_path):
    case = {"capacity": 60, "per": "step"}
    buffer = make(case, storage, tmp_path / "work", segment_bytes=64)
    buffer.add_trajectories([episode(30)])
    buffer.save_checkpoint(tmp_path / "first")
    buffer.add_trajectories([episode(10)])
    buffer.save_checkpoint(tmp_path / "second")
    first, second = inodes(tmp_path / "first", "frames"), inodes(tmp_path / "second", "frames")
    shared = {name for name in first if second.get(name) == first[name]}
    rows = 64 // 12
    assert len(shared) == 30 // rows and len(second) == 40 // rows
    # The first checkpoint stays whole when the ring has left its rows behind.
    for _ in range(9):
        buffer.add_trajectories([episode(10)])
    assert not set(first) & set(inodes(tmp_path / "work", "frames"))
    shutil.rmtree(tmp_path / "second")
    other = make(case, storage, tmp_path / "other", segment_bytes=64)
    assert other.load_checkpoint(tmp_path / "first") == []
    assert len(other) == 30
    states = other.sample(2000).obs["state"][:, 0]
    assert states.unique().tolist() == list(range(0, 60, 2))


@pytest.mark.parametrize("storage", STORAGES)
def test_a_snapshot_is_of_its_moment(storage, tmp_path):
    case = {"capacity": 20, "per": "step"}
    buffer = make(case, storage, tmp_path / "work", segment_bytes=64)
    buffer.add_trajectories([episode(18)])
    write = buffer.snapshot(tmp_path / "saved")
    state = torch.full((20, 2), 7.0)
    later = episode(20)
    later.obs = {"state": state[:, None]}
    buffer.add_trajectories([later])
    buffer.sample(5)
    write()
    other = make(case, storage, tmp_path / "other", segment_bytes=64)
    other.load_checkpoint(tmp_path / "saved")
    assert len(other) == 18
    assert other.sample(500).obs["state"].max() == 35
    fresh = make(case, storage, tmp_path / "fresh", segment_bytes=64)
    fresh.add_trajectories([episode(18)])
    fresh.sample(500)
    assert equal(other.sample(9), fresh.sample(9))


def test_segments_are_safetensors_files(tmp_path):
    buffer = TrajectoryReplayBuffer(20, folder=tmp_path / "work", segment_bytes=10**6)
    buffer.add_trajectories([episode(5)])
    buffer.save_checkpoint(tmp_path / "saved")
    (file,) = (tmp_path / "saved" / "rank_0").glob("frames_*")
    assert load_file(file)["obs/state"].tolist() == [[2 * i, 2 * i + 1] for i in range(5)]


def test_a_smaller_buffer_keeps_the_newest_and_says_so(tmp_path):
    buffer = TrajectoryReplayBuffer(20, segment_bytes=64)
    buffer.add_trajectories([episode(20)])
    buffer.save_checkpoint(tmp_path)
    for storage in STORAGES:
        folder = tmp_path / str(STORAGES.index(storage))
        small = make({"capacity": 7, "per": "step"}, storage, folder, segment_bytes=64)
        (note,) = small.load_checkpoint(tmp_path)
        assert note.startswith("13 oldest transitions")
        assert set(small.sample(500).indices.tolist()) == set(range(13, 20))
        small.close()
    fixed = TrajectoryReplayBuffer(7, overwrite=False)
    with pytest.raises(ValueError, match="has 20 transitions, this buffer holds 7"):
        fixed.load_checkpoint(tmp_path)
    assert len(fixed) == 0


def test_an_empty_buffer_is_saved_too(tmp_path):
    TrajectoryReplayBuffer(5, seed=3).save_checkpoint(tmp_path)
    other = TrajectoryReplayBuffer(5)
    assert other.load_checkpoint(tmp_path) == [] and len(other) == 0
    other.add_trajectories([episode(5)])
    same_seed = TrajectoryReplayBuffer(5, seed=3)
    same_seed.add_trajectories([episode(5)])
    assert equal(other.sample(9), same_seed.sample(9))


# -- damage ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path) -> Path:
    buffer = TrajectoryReplayBuffer(40, segment_bytes=64)
    buffer.add_trajectories([episode(30, terminated=False)])
    buffer.save_checkpoint(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("table", ["facts", "frames", "finals"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_damaged_file_is_named(table, ranks, saved):
    file = sorted((saved / "rank_0").glob(f"{table}_*"))[0]
    whole = file.read_bytes()
    buffer = TrajectoryReplayBuffer(40, world_size=ranks)
    for broken, words in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), "is not what was written"),
        (whole[:-3], "is not what was written"),
        (None, "is missing"),
    ):
        file.unlink()
        if broken is not None:
            file.write_bytes(broken)
        else:
            file.touch()
            file.unlink()
        with pytest.raises(ReplayDamaged, match=f"{file.name}.* {words}"):
            buffer.load_checkpoint(saved)
        file.touch()
    file.write_bytes(whole[:-3])
    with pytest.raises(ReplayDamaged, match=f"{file.name} has .* bytes instead of"):
        buffer.load_checkpoint(saved, verify=False)
    assert len(buffer) == 0
    file.write_bytes(whole)
    buffer.load_checkpoint(saved)
    assert len(buffer) == (30 if buffer.rank == 0 else 0)


def test_a_folder_that_is_no_buffer_is_named(saved, tmp_path):
    with pytest.raises(ReplayDamaged, match="state.json is missing"):
        TrajectoryReplayBuffer(5).load_checkpoint(tmp_path / "nothing")
    with pytest.raises(ReplayDamaged, match="has no folder rank_0"):
        find_shards(tmp_path / "nothing")
    (saved / "rank_0" / "state.json").write_text("{")
    with pytest.raises(ReplayDamaged, match="state.json cannot be read"):
        SavedShard.open(saved / "rank_0")


# -- a full disk -----------------------------------------------------------------------------------


def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_before_a_mapped_row_is_lost(tmp_path, monkeypatch):
    case = {"capacity": 40, "per": "step"}
    buffer = make(case, STORAGES[3], tmp_path / "work", segment_bytes=128)
    buffer.add_trajectories([episode(15)])
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ReplayDiskError, match="No space left.*frames_000000000020") as told:
        buffer.add_trajectories([episode(15)])
    assert told.value.errno == errno.ENOSPC
    assert len(buffer) == 15
    monkeypatch.undo()
    buffer.add_trajectories([episode(15)])
    assert set(buffer.sample(2000).indices.tolist()) == set(range(30))
    assert buffer.sample(500).obs["state"].max() == 29


@pytest.mark.parametrize("storage", STORAGES[:3])
def test_a_full_disk_costs_a_checkpoint_and_nothing_else(storage, tmp_path, monkeypatch):
    case = {"capacity": 40, "per": "step"}
    buffer = make(case, storage | {"auto_save": False}, tmp_path / "work", segment_bytes=128)
    buffer.add_trajectories([episode(25)])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReplayDiskError, match="No space left.*(facts|frames)_0000"):
        buffer.save_checkpoint(tmp_path / "first")
    monkeypatch.undo()
    buffer.add_trajectories([episode(5)])
    buffer.save_checkpoint(tmp_path / "second")
    other = make(case, STORAGES[0], tmp_path / "other")
    assert other.load_checkpoint(tmp_path / "second") == []
    assert equal(other.sample(20), buffer.sample(20))


def test_another_disk_gets_copies(tmp_path, monkeypatch):
    buffer = TrajectoryReplayBuffer(40, folder=tmp_path / "work", segment_bytes=64)
    buffer.add_trajectories([episode(30)])

    def crosses(*args):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", crosses)
    buffer.save_checkpoint(tmp_path / "saved")
    other = TrajectoryReplayBuffer(40)
    other.load_checkpoint(tmp_path / "saved")
    assert equal(other.sample(20), buffer.sample(20))
