"""Observations that are not finite do not reach the policy."""

import math

import pytest
import torch

from rlinf.workers.rollout.observation_guard import ObservationGuard
from rlinf.workers.rollout.trajectory_recorder import TrajectoryRecorder

IDS = [8, 9, 12, 13]


def observations():
    return {"states": torch.randn(4, 6), "main_images": torch.zeros(4, 2, 2, 3, dtype=torch.uint8)}


def test_finite_observations_pass_as_they_are():
    obs = observations()
    obs["states"][0] = 3e38  # The sum overflows; the numbers are finite.
    guarded, bad = ObservationGuard("stop", pytest.fail).check(obs, 0, IDS)
    assert guarded is obs and bad is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_run_stops_with_tensor_env_and_step(value):
    obs = observations()
    obs["final_states"] = obs["states"].clone()
    obs["final_states"][2, 5] = value
    words = rf"'final_states' of env 12 is {value} at index \[5\] in step 7 of the rollout"
    with pytest.raises(FloatingPointError, match=words):
        ObservationGuard("stop", pytest.fail).check(obs, 7, IDS)


def test_the_policy_sees_zeros_and_the_rows_are_known():
    said = []
    obs = observations()
    obs["final_states"] = obs["states"].clone()
    obs["states"][2, 5] = math.nan
    obs["final_states"][0] = math.inf
    before = obs["states"].clone()
    guarded, bad = ObservationGuard("skip", said.append).check(obs, 7, IDS)
    assert bad.tolist() == [True, False, True, False]
    assert guarded["states"][2, 5] == 0 and guarded["final_states"][0].abs().sum() == 0
    assert torch.equal(guarded["states"][[0, 1, 3]], before[[0, 1, 3]])
    assert len(said) == 2 and "env 12" in said[0] and "env 8" in said[1]


def test_steps_before_and_after_such_an_observation_are_marked():
    record = TrajectoryRecorder(value=lambda inputs: torch.zeros(4, 1))
    result = {
        "prev_values": torch.zeros(4, 1),
        "prev_logprobs": torch.zeros(4, 2),
        "forward_inputs": {"states": torch.zeros(4, 6)},
    }
    rows = {0: [True, False, False, False], 2: [False, True, False, False]}
    for step in range(4):
        record.add_end(None, torch.tensor(rows[step]) if step in rows else None)
        record.add_step(result, version=0)
    record.add_end(None, torch.tensor([False, False, True, False]))
    finite = record.finish(torch.zeros(4, 1)).finite.int()
    assert finite.tolist() == [[0, 1, 1, 1], [1, 0, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1]]
