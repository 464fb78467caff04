"""What env workers record of a rollout."""

import pytest
import torch

from rlinf.data.embodied import EnvTrajectory, UnscoredTrajectory, split_trajectory
from rlinf.workers.env.trajectory_recorder import TrajectoryRecorder


def chunk(valid, done=None, **further):
    """One chunk of two actions in two envs; further infos are those of the second action."""
    valid = torch.tensor(valid, dtype=torch.bool)
    ends = torch.zeros(2, 2, dtype=torch.bool)
    if done is not None:
        ends[done] = True
    infos = [{"_valid": valid[:, 0]}, {"_valid": valid[:, 1], **further}]
    actions = torch.arange(8.0).reshape(2, 2, 2)
    return actions, torch.ones(2, 2), ends, torch.zeros_like(ends), infos


def test_episodes_begin_where_envs_were_reset():
    recorder = TrajectoryRecorder(begins=True)
    recorder.add(*chunk([[1, 1], [1, 1]]), resets=True)
    recorder.add(*chunk([[1, 0], [1, 1]], done=(0, 0)), resets=True)
    recorder.add(*chunk([[1, 1], [1, 1]]), resets=True)
    record = recorder.finish()
    assert record.begins.tolist() == [[True, True], [False, False], [True, False]]
    assert record.valid[1].tolist() == [[True, False], [True, True]]
    assert recorder.env_steps == 11
    assert record.actions.shape == (3, 2, 2, 2) and not record.intervened.any()


def test_an_env_that_rests_begins_nothing():
    recorder = TrajectoryRecorder(begins=False)
    recorder.add(*chunk([[1, 0], [1, 1]], done=(0, 0)), resets=False)
    recorder.add(*chunk([[0, 0], [1, 1]]), resets=False)
    assert not recorder.finish().begins.any() and recorder.env_steps == 5


def test_actions_are_those_that_were_carried_out():
    flag, instead = torch.tensor([False, True]), torch.full((2, 2), -1.0)
    recorder = TrajectoryRecorder(begins=True)
    given = chunk([[1, 1], [1, 1]], intervene_flag=flag, intervene_action=instead)
    recorder.add(*given, resets=True)
    record = recorder.finish()
    assert record.intervened[0].tolist() == [[False, False], [False, True]]
    assert record.actions[0, 1].tolist() == [[4.0, 5.0], [-1.0, -1.0]]
    assert given[0][1, 1].tolist() == [6.0, 7.0], "what the policy chose is left alone"


@pytest.mark.parametrize("reports", [True, False])
def test_a_reward_model_sees_where_chunks_led_to(reports):
    recorder = TrajectoryRecorder(begins=True, keeps_success=reports)
    solved = torch.tensor([True, False])
    recorder.add(*chunk([[1, 1], [1, 1]]), resets=True)
    first = {"states": torch.tensor([[1.0], [2.0]]), "task_descriptions": ["a", "b"]}
    recorder.add_outcome(first, {"success": solved})
    recorder.add(*chunk([[1, 0], [1, 1]], done=(0, 0)), resets=True)
    # The first env was reset: its new episode begins with -1, and its old one ended with 3.
    recorder.add_outcome(
        {"states": torch.tensor([[-1.0], [4.0]]), "task_descriptions": ["a", "b"]},
        {
            "success": ~solved,
            "final_observation": {"states": torch.tensor([[3.0], [4.0]])},
            "_final_observation": torch.tensor([True, False]),
        },
    )
    record = recorder.finish()
    assert isinstance(record, UnscoredTrajectory)
    assert record.outcomes.keys() == {"states"}
    assert record.outcomes["states"][..., 0].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    if reports:
        assert record.success.tolist() == [[True, False], [False, True]]
    else:
        assert record.success is None
    second = split_trajectory(record, [1, 1])[1]
    assert second.outcomes["states"][..., 0].tolist() == [[2.0], [4.0]]
    scored = record.scored(torch.zeros(2, 2, 2))
    assert type(scored) is EnvTrajectory and not scored.rewards.any()
    assert torch.equal(scored.actions, record.actions)
