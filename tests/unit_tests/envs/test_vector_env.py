"""Chunks, auto-reset, step limits, resting slots, final observations and metrics."""

import numpy as np
import pytest
import torch

from rlinf.envs import EnvError


def test_reset_gives_tensors_and_words(walk):
    env = walk(3, seed=1)
    assert env.is_start
    obs, infos = env.reset()
    assert not env.is_start
    assert obs["states"].dtype == torch.float32
    assert obs["states"].shape == (3, 3)
    assert obs["task_descriptions"] == [f"walk from {begin:.0f}" for begin in obs["states"][:, 0]]
    assert infos["_valid"].all()
    assert env.seed == 1


def test_step_is_a_chunk_of_one(walk, push):
    one, two = walk(seed=1), walk(seed=1)
    one.reset(), two.reset()
    a, b = one.step(push()[:, 0]), two.chunk_step(push())
    assert torch.equal(a[0]["states"], b[0][0]["states"])
    assert a[1].shape == (2,)
    assert torch.equal(a[1], b[1][:, 0])


def test_a_chunk_makes_its_steps(walk, push):
    env = walk(seed=1)
    start, _ = env.reset()
    actions = torch.tensor([[[0.5, 0], [-1, 0], [0.25, 0]], [[1, 0], [1, 0], [1, 0]]])
    obs, rewards, terminations, truncations, infos = env.chunk_step(actions)
    assert len(obs) == len(infos) == 3
    assert torch.equal(rewards, actions[..., 0])
    assert rewards.dtype == torch.float32
    assert terminations.dtype == truncations.dtype == torch.bool
    assert not terminations.any() and not truncations.any()
    moved = torch.stack([one["states"][:, 1] for one in obs], 1) - start["states"][:, :1]
    assert torch.allclose(moved, actions[..., 0].cumsum(1))
    assert "episode" not in infos[-1]


def test_the_limit_truncates_and_the_next_episode_begins_at_the_end_of_the_chunk(walk, push):
    env = walk(seed=1, max_episode_steps=4)
    first, _ = env.reset()
    env.chunk_step(push(chunk=3, amount=0.5))
    obs, rewards, terminations, truncations, infos = env.chunk_step(push(chunk=3, amount=0.5))
    assert rewards.tolist() == [[0.5, 0, 0]] * 2
    assert truncations.tolist() == [[True, False, False]] * 2
    assert not terminations.any()
    assert [info["_valid"].tolist() for info in infos] == [[True] * 2, [False] * 2, [False] * 2]
    end = infos[-1]["final_observation"]["states"]
    assert torch.equal(end[:, 1], first["states"][:, 0] + 2)
    assert infos[-1]["_final_observation"].all()
    assert obs[-1]["states"][:, 2].tolist() == [0, 0]
    assert not torch.equal(obs[-1]["states"][:, 0], end[:, 0])
    assert obs[-1]["task_descriptions"][0] == f"walk from {obs[-1]['states'][0, 0]:.0f}"
    words = infos[-1]["final_observation"]["task_descriptions"]
    assert words == first["task_descriptions"]


def test_metrics_of_finished_episodes(walk):
    env = walk(2, seed=1, max_episode_steps=6)
    env.reset()
    actions = torch.tensor([[[1.0, 0]] * 5 + [[-1.0, 0]] * 1, [[-0.5, 0]] * 6]).repeat(1, 1, 1)
    *_, infos = env.chunk_step(actions)
    metrics, mask = infos[-1]["episode"], infos[-1]["_episode"]
    assert mask.tolist() == [True, True]
    assert metrics["success_once"].tolist() == [1, 0]
    assert metrics["success_at_end"].tolist() == [1, 0]
    assert metrics["return"].tolist() == [4, -3]
    assert metrics["episode_len"].tolist() == [6, 6]
    assert metrics["reward"].tolist() == pytest.approx([4 / 6, -0.5])
    assert all(value.dtype == torch.float32 for value in metrics.values())


def test_success_at_end_is_not_success_once(walk):
    env = walk(1, max_episode_steps=8)
    env.reset()
    actions = torch.tensor([[[1.0, 0]] * 4 + [[-1.0, 0]] * 4])
    *_, infos = env.chunk_step(actions)
    assert [bool(info["success"]) for info in infos] == [False] * 3 + [True] + [False] * 4
    assert infos[-1]["episode"]["success_once"].item() == 1
    assert infos[-1]["episode"]["success_at_end"].item() == 0


def test_a_slot_that_terminates_inside_a_chunk_rests(walk, push):
    env = walk(2, seed=1, terminates=True)
    env.reset()
    actions = push(chunk=6)
    actions[1] = 0.1
    obs, rewards, terminations, truncations, infos = env.chunk_step(actions)
    assert terminations.tolist() == [[False] * 3 + [True] + [False] * 2, [False] * 6]
    assert not truncations.any()
    assert rewards[0].tolist() == [1, 1, 1, 1, 0, 0]
    assert torch.equal(obs[3]["states"][0], obs[4]["states"][0])
    assert infos[-1]["episode"]["episode_len"][0] == 4
    assert infos[-1]["_episode"].tolist() == [True, False]
    assert obs[-1]["states"][:, 2].tolist() == [0, 6]


def test_without_auto_reset_flags_stay_where_they_are_and_slots_rest(walk, push):
    env = walk(2, seed=1, terminates=True, auto_reset=False)
    env.reset()
    actions = push(chunk=6)
    actions[1] = 0.1
    obs, rewards, terminations, _, infos = env.chunk_step(actions)
    assert terminations[0].tolist() == [False, False, False, True, False, False]
    assert infos[-1]["_episode"].tolist() == [True, False]
    obs, rewards, terminations, _, infos = env.chunk_step(actions)
    assert rewards[0].tolist() == [0] * 6
    assert not terminations[0].any()
    assert infos[0]["_valid"].tolist() == [False, True]
    assert obs[-1]["states"][:, 2].tolist() == [4, 12]
    assert "episode" not in infos[-1]
    obs, infos = env.reset()
    assert infos["_valid"].all()
    assert obs["states"][:, 2].tolist() == [0, 0]


def test_ignored_terminations_run_to_the_limit(walk, push):
    env = walk(2, terminates=True, ignore_terminations=True, max_episode_steps=8)
    env.reset()
    obs, rewards, terminations, truncations, infos = env.chunk_step(push(chunk=5))
    assert not terminations.any() and not truncations.any()
    assert rewards.sum() == 10
    *_, terminations, truncations, infos = env.chunk_step(push(chunk=5))
    assert not terminations.any()
    assert truncations.tolist() == [[False, False, True, False, False]] * 2
    assert infos[-1]["episode"]["success_once"].tolist() == [1, 1]


def test_termination_at_the_limit_is_a_termination(walk, push):
    env = walk(1, terminates=True, max_episode_steps=4)
    env.reset()
    _, _, terminations, truncations, _ = env.chunk_step(push(1, 4))
    assert terminations[0, -1] and not truncations.any()


def test_reward_coefficient_and_relative_reward(walk):
    actions = torch.tensor([[[1.0, 0], [1.0, 0], [0.5, 0]]])
    scaled, relative = walk(1, reward_coef=2.0), walk(1, use_rel_reward=True, max_episode_steps=3)
    scaled.reset(), relative.reset()
    assert scaled.chunk_step(actions)[1].tolist() == [[2, 2, 1]]
    _, rewards, *_, infos = relative.chunk_step(actions)
    assert rewards.tolist() == [[1, 0, -0.5]]
    assert infos[-1]["episode"]["return"].item() == 0.5
    assert relative.chunk_step(actions)[1].tolist() == [[1, 0, -0.5]]


def test_what_was_returned_is_never_overwritten(walk, push):
    env = walk(2, max_episode_steps=3)
    kept = [env.reset()[0]["states"]]
    copies = [kept[0].clone()]
    for _ in range(7):
        states = env.chunk_step(push())[0][-1]["states"]
        kept.append(states)
        copies.append(states.clone())
    assert all(torch.equal(one, other) for one, other in zip(kept, copies, strict=True))


def test_a_step_before_a_reset_is_refused(walk, push):
    env = walk()
    with pytest.raises(EnvError, match="has to be reset before"):
        env.chunk_step(push())
    env.reset()
    env.is_start = True
    with pytest.raises(EnvError, match="has to be reset before"):
        env.chunk_step(push())


@pytest.mark.parametrize("shape", [(2, 1, 3), (3, 1, 2), (2, 2), (2,)])
def test_actions_of_a_wrong_shape_are_refused(walk, shape):
    env = walk()
    env.reset()
    with pytest.raises(ValueError, match=r"expected \[envs, chunk, dim\] with 2 envs and 2 entr"):
        env.chunk_step(np.zeros(shape))


def test_metrics_of_running_episodes_and_pictures(walk, push):
    env = walk(3)
    env.reset()
    env.chunk_step(push(3, 2))
    assert env.episode_metrics()["return"].tolist() == [2, 2, 2]
    assert env.capture_image([2, 0])[:, 0, 0, 0].tolist() == [2, 0]
    assert torch.equal(env.last_obs["states"][:, 2], torch.full((3,), 2.0))
    env.close(), env.close()


def test_no_limit_at_all(walk, push):
    env = walk(1, own_limit=None)
    assert env.max_episode_steps is None
    env.reset()
    for _ in range(50):
        *_, truncations, _ = env.chunk_step(push(1, 50, 0.0))
        assert not truncations.any()


def test_a_gymnasium_style_number_of_envs(walk):
    with pytest.raises(ValueError, match="num_envs is 0"):
        walk(0)
