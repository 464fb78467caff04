"""Simulators that fail and numbers that are not finite."""

import pickle

import pytest
import torch

from rlinf.envs import EnvSlotError, NotFiniteError


def test_a_failure_is_raised_with_its_place(walk, push):
    env = walk(2, fail_at=(1, 3), seed=4)
    env.reset()
    with pytest.raises(EnvSlotError) as caught:
        env.chunk_step(push(chunk=5, amount=0.0))
    error = caught.value
    assert (error.slot, error.step) == (1, 3)
    assert "walk: slot 1, step 3 of its episode (reset id -1, seed " in str(error)
    assert "ValueError: the motor is hot; max_restarts: N would" in str(error)
    assert isinstance(error.__cause__, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.slot, again.step, again.seed) == (1, 3, error.seed)
    assert type(again) is EnvSlotError


def test_a_failed_slot_is_made_anew_with_its_seed_and_counted(walk, push):
    env = walk(2, fail_at=(1, 3), seed=4, max_restarts=2)
    first, infos = env.reset()
    assert infos["restarts"] == 0
    obs, rewards, terminations, truncations, infos = env.chunk_step(push(chunk=5, amount=0.5))
    assert env.made == [0, 1, 1]
    assert infos[-1]["restarts"] == 1
    assert truncations.tolist() == [[False] * 5, [False, False, True, False, False]]
    assert not terminations.any()
    assert rewards[1].tolist() == [0.5, 0.5, 0, 0, 0]
    assert infos[-1]["_final_observation"].tolist() == [False, True]
    assert not infos[-1]["_episode"].any()
    final = infos[-1]["final_observation"]["states"][1]
    assert final[1] - final[0] == 1
    assert torch.equal(obs[-1]["states"][1], first["states"][1])
    obs, *_ = env.chunk_step(push(chunk=5, amount=0.5))
    assert obs[-1]["states"][:, 2].tolist() == [10, 5]


def test_the_budget_of_restarts_ends(walk, push, monkeypatch):
    env = walk(2, max_restarts=2)
    monkeypatch.setattr(env, "step_slot", lambda *_: 1 / 0)
    env.reset()
    env.chunk_step(push())
    with pytest.raises(EnvSlotError, match="ZeroDivisionError.*max_restarts 2 is used up"):
        env.chunk_step(push())


def test_a_reset_that_fails_once_is_tried_again(walk, monkeypatch):
    env = walk(2, max_restarts=1)
    reset, fails = env.reset_slot, [True]

    def reset_slot(slot, start):
        if fails and fails.pop():
            raise RuntimeError("jammed")
        return reset(slot, start)

    monkeypatch.setattr(env, "reset_slot", reset_slot)
    _, infos = env.reset()
    assert infos["restarts"] == 1
    fails.append(True)
    with pytest.raises(EnvSlotError, match=r"slot 0, step 0 .* RuntimeError: jammed"):
        env.reset()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("nan_at", "observation 'states' is nan at index 1"),
        ("nan_reward_at", "reward is inf"),
    ],
)
def test_numbers_that_are_not_finite_stop_the_run(walk, push, key, words):
    env = walk(3, **{key: (2, 4)})
    env.reset()
    with pytest.raises(NotFiniteError) as caught:
        env.chunk_step(push(3, 6, 0.0))
    assert "walk: slot 2, step 4 of its episode" in str(caught.value)
    assert words in str(caught.value)
    assert "on_nan: skip" in str(caught.value)


@pytest.mark.parametrize("key", ["nan_at", "nan_reward_at"])
def test_or_drop_the_episode_and_are_counted(walk, push, key):
    env = walk(3, on_nan="skip", max_episode_steps=6, **{key: (2, 4)})
    env.reset()
    obs, rewards, _, truncations, infos = env.chunk_step(push(3, 6, 0.5))
    assert infos[-1]["nan_skipped"] == 1
    assert infos[-1]["restarts"] == 0
    assert infos[-1]["_episode"].tolist() == [True, True, False]
    assert infos[-1]["_final_observation"].all()
    assert truncations.any(1).all()
    assert torch.isfinite(rewards).all()
    assert torch.isfinite(infos[-1]["final_observation"]["states"]).all()
    assert rewards[2].tolist() == [0.5, 0.5, 0.5, 0, 0, 0]


def test_a_policy_that_gives_nan_is_blamed(walk, push):
    env = walk()
    env.reset()
    actions = push(chunk=2)
    actions[1, 0, 1] = float("nan")
    with pytest.raises(NotFiniteError, match=r"slot 1, step 1 .* policy gave is nan at index \[0"):
        env.chunk_step(actions)
