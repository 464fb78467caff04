"""Trajectories are cut and joined along their envs, and nothing of them is lost."""

import pytest
import torch

from rlinf.data.embodied import (
    EmbodiedBatch,
    EnvTrajectory,
    FinalObservations,
    PolicyTrajectory,
    merge_trajectories,
    split_trajectory,
)
from rlinf.data.embodied_messages import (
    merge_observations,
    pack_observations,
    split_observations,
)

T, B, C, A = 3, 6, 2, 4


def of_env(begin=0, envs=B):
    """Every number says which env it belongs to."""
    number = torch.arange(begin, begin + envs).float()
    flags = torch.zeros(T, envs, C, dtype=torch.bool)
    return EnvTrajectory(
        rewards=number[None, :, None].expand(T, envs, C).clone(),
        terminations=flags,
        truncations=flags.clone(),
        valid=~flags,
        begins=torch.zeros(T, envs, dtype=torch.bool),
        actions=number[None, :, None, None].expand(T, envs, C, A).clone(),
        intervened=flags.clone(),
    )


def of_policy(begin=0, envs=B, ended=((0, 1), (2, 4), (2, 5))):
    number = torch.arange(begin, begin + envs).float()
    own = [(step, env - begin) for step, env in ended if begin <= env < begin + envs]
    rows = torch.tensor([env for _, env in own], dtype=torch.long)
    return PolicyTrajectory(
        forward_inputs={"states": number[None, :, None].expand(T, envs, 5).clone()},
        prev_logprobs=number[None, :, None].expand(T, envs, C * A).clone(),
        prev_values=number[None, :, None].expand(T + 1, envs, 1).clone(),
        bootstrap_values=torch.zeros(T, envs, 1),
        versions=torch.full((T, envs), 7),
        finite=torch.ones(T, envs, dtype=torch.bool),
        final=FinalObservations(
            torch.tensor([step for step, _ in own], dtype=torch.long),
            rows,
            {"states": number[rows].unsqueeze(1)},
        ),
    )


def same(one, other):
    for name, value in vars(one).items():
        theirs = getattr(other, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, theirs), name
        elif isinstance(value, dict):
            assert all(torch.equal(value[key], theirs[key]) for key in value), name
        elif value is not None:
            same(value, theirs)


@pytest.mark.parametrize("sizes", [[6], [2, 4], [1, 2, 3], [2, 2, 2]])
@pytest.mark.parametrize("make", [of_env, of_policy])
def test_parts_of_a_trajectory_hold_their_envs_and_make_the_whole(make, sizes):
    whole = make()
    parts = split_trajectory(whole, sizes)
    begin = 0
    for part, size in zip(parts, sizes, strict=True):
        same(part, make(begin, size))
        begin += size
    same(merge_trajectories(parts), whole)


def test_a_batch_has_the_stages_and_epochs_side_by_side():
    batch = EmbodiedBatch.join(
        [of_env(0, 2), of_env(2, 4)], [of_policy(0, 2, ()), of_policy(2, 4, ())]
    )
    assert batch.num_samples == T * B
    assert batch.rewards[1, :, 0].tolist() == list(range(6))
    assert batch.forward_inputs["states"][2, :, 0].tolist() == list(range(6))
    assert batch.final.steps.tolist() == []


def test_a_trajectory_without_final_observations_has_none_in_its_parts():
    whole = of_policy()
    whole.final = None
    parts = split_trajectory(whole, [2, 4])
    assert all(part.final is None for part in parts)
    assert merge_trajectories(parts).final is None


def obs_of(*numbers):
    return {
        "states": torch.tensor(numbers).float().unsqueeze(1),
        "wrist_images": torch.tensor(numbers, dtype=torch.uint8).reshape(-1, 1, 1, 1),
        "task_descriptions": [f"task {number}" for number in numbers],
    }


def test_observations_carry_pictures_text_and_the_ends_of_episodes():
    ended = {"final_observation": obs_of(8, 9), "_final_observation": torch.tensor([False, True])}
    merged = merge_observations(
        [
            pack_observations(obs_of(0, 1), early=obs_of(4, 5)),
            pack_observations(obs_of(2, 3), ended, early=obs_of(6, 3)),
        ]
    )
    assert merged["obs"]["task_descriptions"] == [f"task {i}" for i in range(4)]
    assert merged["obs"]["wrist_images"].flatten().tolist() == [0, 1, 2, 3]
    assert merged["done"].tolist() == [False, False, False, True]
    last = merged["final"]
    assert last["states"].tolist() == [[9.0]] and last["task_descriptions"] == ["task 9"]
    for sizes in ([4], [1, 3], [3, 1], [2, 2]):
        parts = split_observations(merged, sizes)
        assert [len(part["final"]["states"]) for part in parts] == [0] * (len(sizes) - 1) + [1]
        again = merge_observations(parts)
        assert again["done"].tolist() == merged["done"].tolist()
        assert again["early"]["states"].flatten().tolist() == [4, 5, 6, 3]
        assert again["final"]["task_descriptions"] == ["task 9"]


def test_texts_that_say_nothing_do_not_travel():
    message = pack_observations({"states": torch.zeros(2, 1), "task_descriptions": ["", ""]})
    assert list(message["obs"]) == ["states"]
