"""What env and rollout workers hand over becomes rows."""

from __future__ import annotations

import torch

from rlinf.data.embodied import EmbodiedBatch, FinalObservations
from rlinf.data.replay import ReplayTrajectory, TrajectoryReplayBuffer

T, B, C, A = 3, 2, 2, 1


def batch() -> EmbodiedBatch:
    """Env 1 is truncated by the first action of its second chunk; its third is not finite."""
    flags = torch.zeros(T, B, C, dtype=torch.bool)
    truncations, valid = flags.clone(), ~flags
    truncations[1, 1, 0] = True
    valid[1, 1, 1] = False
    begins, finite = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
    begins[0] = begins[2, 1] = True
    finite[0, 0] = False
    final = FinalObservations(
        torch.tensor([1]), torch.tensor([1]), {"state": torch.tensor([[-9.0]])}
    )
    return EmbodiedBatch(
        rewards=torch.arange(float(T * B * C)).reshape(T, B, C),
        terminations=flags,
        truncations=truncations,
        valid=valid,
        begins=begins,
        actions=torch.arange(float(T * B * C * A)).reshape(T, B, C, A),
        intervened=flags.clone().index_fill_(0, torch.tensor([1]), True),
        forward_inputs={},
        prev_logprobs=torch.zeros(T, B, C * A),
        prev_values=torch.zeros(T + 1, B, 1),
        bootstrap_values=torch.zeros(T, B, 1),
        versions=torch.tensor([[4, 4], [4, 4], [5, 5]]),
        finite=finite,
        final=final,
    )


def test_a_rollout_becomes_rows():
    obs = {"state": torch.arange(float(T * B)).reshape(T, B, 1)}
    buffer = TrajectoryReplayBuffer(10, gamma=0.5, n_step=2)
    buffer.add_trajectories([ReplayTrajectory.of_rollout(batch(), obs, ["a", "b"])])
    drawn = buffer.sample(400)
    by_row = {row: i for i, row in enumerate(drawn.indices.tolist())}
    # Row 0 is not finite; the next observations of rows 4 and 5 are not there yet.
    assert sorted(by_row) == [1, 2, 3]
    at = by_row[1]
    # Rewards 2, 3, then 6, where the episode was cut off.
    assert drawn.rewards[at] == 2 + 0.5 * 3 + 0.25 * 6
    assert drawn.discounts[at] == drawn.bootstrap[at] == 0.125
    assert drawn.truncations[at] and drawn.next_obs["state"][at] == -9
    at = by_row[2]
    # The row after it cannot be drawn yet: one step, and the observation that follows.
    assert drawn.steps[at] == 1 and drawn.next_obs["state"][at] == 4
    assert drawn.rewards[at] == 4 + 0.5 * 5 and drawn.intervened[at].all()
    assert drawn.versions[at] == 4 and drawn.actions[at].flatten().tolist() == [4, 5]
    assert drawn.valid[by_row[3]].tolist() == [True, False]

    later = batch()
    later.begins[0] = False
    buffer.add_trajectories([ReplayTrajectory.of_rollout(later, obs, ["a", "b"])])
    drawn = buffer.sample(400, 1)
    by_row = {row: i for i, row in enumerate(drawn.indices.tolist())}
    assert {4, 5} < set(by_row)
    assert drawn.next_obs["state"][by_row[5]] == 1 and drawn.versions[by_row[5]] == 5
