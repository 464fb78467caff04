"""The buffer against one that is slow and obvious."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.data.embodied import FinalObservations
from rlinf.data.replay import Priorities, ReplayTrajectory, TrajectoryReplayBuffer
from tests.unit_tests.data.replay.reference import Envs, SlowReplay, pick, same

SEGMENT = 400
"""Bytes of a segment: a few rows."""

cases = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "envs": st.integers(1, 4),
        "chunk": st.integers(1, 3),
        "capacity": st.integers(4, 60),
        "steps": st.lists(st.integers(1, 25), min_size=1, max_size=6),
        "per": st.sampled_from(["step", "chunk"]),
        "streams": st.booleans(),
    }
)


def filled(case, folder=None, **kwargs) -> tuple[TrajectoryReplayBuffer, SlowReplay]:
    buffer = TrajectoryReplayBuffer(
        case["capacity"],
        folder=folder,
        gamma=0.9,
        discount_per=case["per"],
        segment_bytes=SEGMENT,
        **kwargs,
    )
    slow = SlowReplay(case["capacity"], 0.9, case["per"])
    envs = Envs(np.random.default_rng(case["seed"]), case["envs"], case["chunk"])
    for steps in case["steps"]:
        trajectory = envs.rollout(steps, streams=case["streams"])
        buffer.add_trajectories([trajectory])
        slow.add(trajectory)
    return buffer, slow


def check(buffer: TrajectoryReplayBuffer, slow: SlowReplay, n_step: int = 3) -> None:
    """Compares all that can be drawn."""
    assert len(buffer) == len(slow.rows)
    assert buffer.num_drawable == len(slow.drawable())
    assert buffer.get_stats()["num_trajectories"] == slow.episodes()
    if not slow.drawable():
        with pytest.raises(ValueError, match="nothing can be drawn"):
            buffer.sample(1)
        return
    rows = slow.by_serial()
    batch = buffer.sample(40 * buffer.num_drawable, n_step)
    # Each row is left out with a chance of e^-40.
    assert set(batch.indices.tolist()) == slow.drawable()
    for i, serial in enumerate(batch.indices[:60].tolist()):
        row, expected = rows[serial], slow.transition(rows[serial], n_step)
        assert same(pick(batch.obs, i), row.obs)
        assert same(pick(batch.next_obs, i), expected["next_obs"])
        assert torch.equal(batch.actions[i], row.action)
        assert batch.rewards[i].item() == pytest.approx(expected["rewards"], rel=1e-5, abs=1e-5)
        assert batch.discounts[i].item() == pytest.approx(expected["discounts"])
        for name in ("steps", "terminations", "truncations"):
            assert getattr(batch, name)[i].item() == expected[name]
        assert batch.valid[i].tolist() == row.valid
        assert batch.intervened[i].tolist() == row.intervened
        assert batch.versions[i].item() == row.version
        assert batch.bootstrap[i].item() == (0 if row_terminal(expected) else batch.discounts[i])


def row_terminal(expected) -> bool:
    return expected["terminations"]


@settings(max_examples=30, deadline=None)
@given(case=cases, n_step=st.integers(1, 5))
def test_it_holds_what_a_list_would(case, n_step):
    check(*filled(case), n_step)


@settings(max_examples=10, deadline=None)
@given(case=cases, n_step=st.integers(1, 3))
def test_mapped_files_hold_the_same(case, n_step, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    mapped, slow = filled(case, folder, enable_cache=False)
    check(mapped, slow, n_step)
    memory, _ = filled(case)
    if mapped.num_drawable:
        # Both have drawn as often only if both are new.
        mapped.close()
        mapped, _ = filled(case, folder, enable_cache=False)
        assert equal(mapped.sample(64, n_step), memory.sample(64, n_step))
    mapped.close()


@settings(max_examples=15, deadline=None)
@given(case=cases, length=st.integers(1, 6))
def test_windows_stay_within_episodes(case, length):
    buffer, slow = filled(case)
    if not buffer.num_drawable:
        return
    rows = slow.by_serial()
    windows = buffer.sample_windows(50, length)
    for i, first in enumerate(windows.indices[:, 0].tolist()):
        expected = slow.window(rows[first], length)
        count = len(expected)
        assert windows.mask[i].tolist() == [True] * count + [False] * (length - count)
        assert windows.indices[i, :count].tolist() == [row.serial for row in expected]
        for k, row in enumerate(expected):
            assert same(pick(windows.obs, (i, k)), row.obs)
            assert torch.equal(windows.actions[i, k], row.action)
            reward, discount = slow.chunk(row)
            assert windows.rewards[i, k].item() == pytest.approx(reward, rel=1e-5, abs=1e-5)
            assert windows.discounts[i, k].item() == pytest.approx(discount)
            assert windows.terminations[i, k].item() == row.terminated
        for k in range(count, length + 1):
            assert same(pick(windows.obs, (i, k)), slow.after(expected[-1]))
    whole = [s for s in slow.drawable() if len(slow.window(rows[s], length)) == length]
    if not whole:
        with pytest.raises(ValueError, match=f"no episode has {length} consecutive"):
            buffer.sample_windows(5, length, whole=True)
    else:
        drawn = buffer.sample_windows(40 * len(whole), length, whole=True)
        assert drawn.mask.all()
        assert set(drawn.indices[:, 0].tolist()) == set(whole)


@settings(max_examples=10, deadline=None)
@given(case=cases, window=st.integers(1, 30))
def test_only_the_newest_are_drawn_from_a_window(case, window):
    for priorities in (None, Priorities()):
        buffer, slow = filled(case, sample_window_size=window, priorities=priorities)
        newest = {row.serial for row in slow.rows[-window:]} & slow.drawable()
        if newest:
            drawn = set(buffer.sample(60 * len(newest)).indices.tolist())
            assert drawn == newest
        else:
            with pytest.raises(ValueError, match="nothing can be drawn"):
                buffer.sample(1)


def equal(one, other) -> bool:
    def flat(value):
        return [t for v in value.values() for t in flat(v)] if isinstance(value, dict) else [value]

    return all(
        torch.equal(a, b)
        for name in vars(one)
        for a, b in zip(flat(getattr(one, name)), flat(getattr(other, name)), strict=True)
    )


# -- priorities ------------------------------------------------------------------------------------


def test_draws_go_by_priority_and_weights_undo_it():
    buffer = TrajectoryReplayBuffer(50, priorities=Priorities(alpha=1, beta=1, epsilon=1e-9))
    buffer.add_trajectories([episode(40)])
    serials = torch.arange(40)
    priorities = torch.linspace(0.1, 4, 40)
    buffer.update_priorities(serials, priorities)
    batch = buffer.sample(200_000)
    shares = torch.bincount(batch.indices, minlength=40) / len(batch)
    assert torch.allclose(shares, priorities / priorities.sum(), atol=1e-3)
    weighted = torch.zeros(40).index_add_(0, batch.indices, batch.weights)
    assert weighted.std() / weighted.mean() < 0.02
    assert batch.weights.max() == 1


def test_new_rows_get_the_greatest_priority_and_dropped_ones_none():
    buffer = TrajectoryReplayBuffer(20, priorities=Priorities(alpha=1, epsilon=1e-9))
    buffer.add_trajectories([episode(20)])
    buffer.update_priorities(torch.arange(20), torch.full((20,), 0.01))
    buffer.update_priorities(torch.tensor([3]), torch.tensor([5.0]))
    buffer.add_trajectories([episode(10)])
    drawn = buffer.sample(10_000).indices
    assert drawn.min() >= 10 and (drawn >= 20).float().mean() > 0.99
    # Row 3 is gone, and its slot is another row's: setting it must change nothing.
    buffer.update_priorities(torch.tensor([3]), torch.tensor([1e9]))
    counts = torch.bincount(buffer.sample(10_000).indices, minlength=30)
    assert counts[20:].min() > 800


def test_priorities_that_make_no_sense_are_refused():
    buffer = TrajectoryReplayBuffer(20, priorities=Priorities())
    buffer.add_trajectories([episode(5)])
    with pytest.raises(ValueError, match="finite numbers"):
        buffer.update_priorities(torch.tensor([1]), torch.tensor([float("nan")]))
    with pytest.raises(ValueError, match="alpha -1"):
        Priorities(alpha=-1)
    uniform = TrajectoryReplayBuffer(20)
    with pytest.raises(ValueError, match="draws uniformly"):
        uniform.update_priorities(torch.tensor([1]), torch.tensor([1.0]))


def test_uniform_draws_are_uniform():
    buffer = TrajectoryReplayBuffer(50)
    buffer.add_trajectories([episode(40)])
    shares = torch.bincount(buffer.sample(200_000).indices, minlength=40) / 200_000
    assert torch.allclose(shares, torch.full((40,), 1 / 40), atol=2e-3)


# -- what users do wrong ---------------------------------------------------------------------------


def episode(length: int, *, terminated: bool = True, size: int = 2) -> ReplayTrajectory:
    return ReplayTrajectory.of_episode(
        {"state": torch.arange(length * size).reshape(length, size).float()},
        torch.zeros(length, 1),
        torch.ones(length),
        terminated=terminated,
        final=None if terminated else {"state": torch.full((size,), -1.0)},
    )


def test_a_truncated_episode_needs_its_final_observation():
    trajectory = episode(4, terminated=False)
    trajectory.final = None
    with pytest.raises(ValueError, match="env 0 was truncated at step 3 .*final_observations=True"):
        TrajectoryReplayBuffer(10).add_trajectories([trajectory])


def test_a_trajectory_of_other_shapes_is_refused():
    buffer = TrajectoryReplayBuffer(10)
    buffer.add_trajectories([episode(4)])
    with pytest.raises(ValueError, match=r"obs/state as F32 \[3\] .* which has F32 \[2\]"):
        buffer.add_trajectories([episode(4, size=3)])
    wrong = episode(4)
    wrong.terminations = wrong.terminations[:2]
    with pytest.raises(ValueError, match=r"terminations has the shape \[2, 1, 1\]"):
        buffer.add_trajectories([wrong])
    wrong = episode(4)
    wrong.streams = ["a", "b"]
    with pytest.raises(ValueError, match=r"streams are \['a', 'b'\]; a trajectory of 1 envs"):
        buffer.add_trajectories([wrong])
    texts = episode(4)
    texts.obs = {"task": ["push"] * 4}
    with pytest.raises(ValueError, match="obs/task is a list.*token ids"):
        buffer.add_trajectories([texts])
    assert len(buffer) == 4


def test_final_observations_of_other_shapes_are_refused():
    trajectory = episode(4, terminated=False)
    trajectory.final = FinalObservations(
        trajectory.final.steps, trajectory.final.envs, {"state": torch.zeros(1, 7)}
    )
    with pytest.raises(ValueError, match=r"final observations with obs/state as F32 \[7\]"):
        TrajectoryReplayBuffer(10).add_trajectories([trajectory])


def test_settings_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ValueError, match="capacity is 0"):
        TrajectoryReplayBuffer(0)
    with pytest.raises(ValueError, match="there is no folder"):
        TrajectoryReplayBuffer(5, enable_cache=False)
    with pytest.raises(ValueError, match="gamma is 2"):
        TrajectoryReplayBuffer(5, gamma=2)
    with pytest.raises(ValueError, match="num_chunks is 0"):
        TrajectoryReplayBuffer(5).sample(0)
    first = TrajectoryReplayBuffer(5, folder=tmp_path)
    with pytest.raises(ValueError, match="working folder of another"):
        TrajectoryReplayBuffer(5, folder=tmp_path)
    first.close()
    TrajectoryReplayBuffer(5, folder=tmp_path).close()


def test_a_buffer_that_does_not_overwrite_refuses_more():
    buffer = TrajectoryReplayBuffer(10, overwrite=False)
    buffer.add_trajectories([episode(8)])
    with pytest.raises(ValueError, match="has 8 of at most 10 and does not overwrite"):
        buffer.add_trajectories([episode(8)])
    assert len(buffer) == 8 and buffer.sample(3)


def test_a_reader_waits_for_a_writer_without_spinning():
    buffer = TrajectoryReplayBuffer(10, min_buffer_size=4)
    assert not buffer.wait_until_ready(timeout=0)
    writer = threading.Thread(target=lambda: buffer.add_trajectories([episode(4)]))
    writer.start()
    assert buffer.wait_until_ready(timeout=60)
    writer.join()


def test_a_trajectory_without_steps_adds_nothing():
    buffer = TrajectoryReplayBuffer(10)
    assert buffer.add_trajectories([episode(4).complete().slice(0, 0)]) == 0
    assert buffer.add_trajectories([episode(4)]) == 4


def test_counts_fall_when_rows_are_dropped():
    buffer = TrajectoryReplayBuffer(10)
    for _ in range(50):
        buffer.add_trajectories([episode(3)])
    stats = buffer.get_stats()
    assert stats["total_samples"] == buffer.total_samples == 10
    assert stats["num_trajectories"] == 4 and stats["added_samples"] == 150
    buffer.clear()
    assert len(buffer) == 0 and not buffer.is_ready()


def test_a_truncation_is_bootstrapped_from_and_a_termination_is_not():
    buffer = TrajectoryReplayBuffer(10, gamma=0.5, n_step=3)
    buffer.add_trajectories([episode(2, terminated=False)])
    batch = buffer.sample(1)
    assert batch.next_obs["state"].tolist() == [[-1.0, -1.0]]
    steps = batch.steps.item()
    assert batch.rewards.item() == (1.5 if steps == 2 else 1.0)
    assert batch.bootstrap.item() == 0.5**steps and batch.truncations.item()
    buffer.clear()
    buffer.add_trajectories([episode(2, terminated=True)])
    batch = buffer.sample(1)
    assert batch.bootstrap.item() == 0 and batch.terminations.item()


def test_an_episode_that_begins_while_its_env_rests_is_a_new_one():
    def steps(*, begins: bool, rests: bool) -> ReplayTrajectory:
        never = torch.zeros(2, 1, 1, dtype=torch.bool)
        return ReplayTrajectory(
            obs={"state": torch.zeros(2, 1, 3)},
            actions=torch.zeros(2, 1, 1, 1),
            rewards=torch.zeros(2, 1, 1),
            terminations=never,
            truncations=never,
            valid=never if rests else ~never,
            begins=torch.tensor([[begins], [False]]),
            streams=["env"],
        )

    buffer = TrajectoryReplayBuffer(10)
    buffer.add_trajectories([steps(begins=True, rests=False)])
    buffer.add_trajectories([steps(begins=False, rests=True), steps(begins=False, rests=False)])
    assert buffer.num_drawable == 3 and buffer.get_stats()["num_trajectories"] == 1
    buffer.add_trajectories([steps(begins=True, rests=True), steps(begins=False, rests=False)])
    assert buffer.num_drawable == 4 and buffer.get_stats()["num_trajectories"] == 2


@pytest.mark.parametrize("at_once", [1, 10**9])
def test_many_batches_are_drawn_from_all_rows(monkeypatch, at_once):
    monkeypatch.setattr("rlinf.data.replay.buffer._AT_ONCE", at_once)
    buffer = TrajectoryReplayBuffer(40, gamma=0.9)
    buffer.add_trajectories([episode(20), episode(9)])
    batches = list(buffer.sample_batches(50, 16))
    assert len(batches) == 50 and all(len(batch) == 16 for batch in batches)
    counts = torch.bincount(torch.cat([batch.indices for batch in batches]), minlength=29)
    # 27.6 expected of each, with a deviation of 5.
    assert counts.shape == (29,) and 5 < int(counts.min()) and int(counts.max()) < 60
    # Each batch has the rows that its indices say.
    for batch in batches[:5]:
        whole = buffer._batch(batch.indices.numpy(), batch.weights.numpy(), 1)
        assert torch.equal(batch.rewards, whole.rewards)
        assert torch.equal(batch.next_obs["state"], whole.next_obs["state"])
    with pytest.raises(ValueError, match="nothing can be drawn"):
        next(TrajectoryReplayBuffer(40).sample_batches(2, 3))


def test_batches_by_priority_are_drawn_one_after_the_other():
    buffer = TrajectoryReplayBuffer(40, priorities=Priorities(alpha=1, epsilon=1e-9))
    buffer.add_trajectories([episode(20)])
    batches = buffer.sample_batches(2, 50)
    assert len(set(next(batches).indices.tolist())) > 5
    buffer.update_priorities(torch.arange(20), torch.zeros(20).index_fill(0, torch.tensor([4]), 1))
    assert set(next(batches).indices.tolist()) == {4}
