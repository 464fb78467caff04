"""Rollouts of plans that are made ahead of time, against a robot that does one action at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from rlinf.algorithms.utils import compute_embodied_advantages
from rlinf.data.embodied import EmbodiedBatch
from rlinf.data.embodied_messages import pack_observations
from rlinf.envs import get_env_cls
from rlinf.models import get_model
from rlinf.models.embodiment.noise import EnvNoise
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.env.early_observations import early_observation
from rlinf.workers.env.env_worker import EnvWorker
from rlinf.workers.env.stage_experts import StageExperts
from rlinf.workers.rollout.rollout_policy import RolloutPolicy

CHUNK, HORIZON, CHUNKS, EPOCHS, SEED = 3, 8, 7, 2, 5
GAMMA, LAMBDA = 0.9, 0.8
SPEC = EnvSpec(obs_dim=3, action_dim=1, action_low=[-2], action_high=[2])
ENV = {
    "env_type": "gymnasium",
    "id": "Pendulum-v1",
    # Episodes end in the middle of a chunk, and of a rollout.
    "max_episode_steps": 11,
    "auto_reset": True,
    "seed": 4,
    "enable_offload": False,
    "total_num_envs": 1,
    "max_steps_per_rollout_epoch": CHUNK * CHUNKS,
    "rollout_epoch": EPOCHS,
}


class Clock(gymnasium.Env):
    """Shows the time and pays it, whatever is done, until it is cut off."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return self._seen(), {}

    def step(self, action):
        self._time += 1
        return self._seen(), float(self._time), False, False, {}

    def _seen(self):
        return np.array([self._time], np.float32)


gymnasium.register("RtcClock-v0", Clock)


def make_policy(delay, spec=SPEC, **further):
    torch.manual_seed(0)
    keys = {"model_type": "flow_policy", "num_action_chunks": CHUNK, "action_horizon": HORIZON}
    keys |= {"rtc": {"delay": delay, "rollouts": "delayed"}, "hidden_sizes": [16]}
    policy = get_model(keys | {"add_value_head": True} | further, spec, torch.float32).eval()
    for parameter in policy.velocity.parameters():
        parameter.data.mul_(3.0)
    return policy


def make_env(**further):
    env = ENV | further
    return get_env_cls("gymnasium", env)(env, 1)


class Worker(EnvWorker):
    """Plays rollouts in this process, with a policy of its own."""

    def __new__(cls, *args: Any) -> Worker:
        return object.__new__(cls)

    def __init__(self, policy: Any, delay: int, env: Any = None) -> None:
        rtc = {"delay": delay, "rollouts": "delayed"}
        model = {"num_action_chunks": CHUNK, "rtc": rtc}
        self.cfg = OmegaConf.create(
            {
                "env": {"train": ENV},
                "actor": {"group_name": "actor", "model": model},
                "algorithm": {"reward_model": None},
            }
        )
        self.stages, self._fresh, self._experts = 1, [True], StageExperts([])
        self._train = [env or make_env()]
        self._acting = RolloutPolicy(policy, torch.device("cpu"), [[0]], seed=SEED)
        self._acting.version = 0
        self.of_envs: list[Any] = []
        self.of_policy: list[Any] = []

    @contextlib.contextmanager
    def worker_timer(self, tag: str | None = None) -> Iterator[None]:
        yield

    def send_to(self, group: str, rank: Any, message: Any, **kwargs: Any) -> None:
        self.of_envs.append(message)

    def _begin_rollout(self, chunks: int) -> None:
        self._acting.begin_rollout(chunks)

    def _begin_epoch(self) -> None:
        self._acting.begin_epoch()

    def _send_obs(self, stage: int, obs: Any, infos: Any, early: Any = None) -> None:
        begins = self._train[0].begins if infos is None else None
        self.message = pack_observations(obs, infos, begins, early)

    def _recv_actions(self, stage: int, epoch: int, chunk: int) -> torch.Tensor:
        return self._acting.act(stage, self.message, epoch, chunk, self._acting.steps + chunk)

    def _end_epoch(self, epoch: int, chunks: int) -> None:
        self._acting.steps += chunks
        self.of_policy.append(self._acting.finish(0, self.message, chunks))


def one_action_at_a_time(policy, delay):
    """Return what a robot does that makes each plan `delay` actions before it needs it.

    Returns:
        Of each chunk, what was done and what it gave, until the episode ended; and the values of
        what was seen before it and after it, and whether the episode ended.
    """
    env, noise = make_env(), EnvNoise(SEED, [0], policy.noise_width)
    obs, chunks, values = env.reset()[0], [], []
    for epoch in range(EPOCHS):
        plan, ahead = None, None
        for chunk in range(CHUNKS):
            if plan is None:
                # Nothing is carried out: the robot waits for the plan.
                plan, first = (obs, epoch * CHUNKS + chunk), 0
            else:
                plan, first = ahead, delay
            made_from, step = plan
            whole = policy.predict_action_batch(made_from, noise=noise.at(step))[1]["plan"]
            done, ended, before = [], False, obs
            for place in range(CHUNK):
                if place == CHUNK - delay:
                    ahead = obs, step + 1
                action = whole[:, first + place]
                obs, reward, _, truncated, infos = env.step(action)
                done.append((action.item(), reward.item()))
                if truncated:
                    ended = True
                    break
            plan = None if ended else plan
            chunks.append(done)
            after = infos["final_observation"] if ended else obs
            own = [policy.predict_values(seen).item() for seen in (before, after)]
            values.append((*own, ended))
    return chunks, values


def slow_advantages(chunks, values):
    """Return `[T, E]`, generalised advantages by their sum, one chunk after the other."""
    found = torch.zeros(CHUNKS, EPOCHS)
    for epoch in range(EPOCHS):
        carried = 0.0
        for chunk in reversed(range(CHUNKS)):
            number = epoch * CHUNKS + chunk
            rewards = [reward for _, reward in chunks[number]]
            before, after, ended = values[number]
            # No more than what is seen and paid: an episode that is cut off would have gone on.
            gain = sum(GAMMA**i * reward for i, reward in enumerate(rewards))
            gain += GAMMA ** len(rewards) * after - before
            carried = gain + (0.0 if ended else (GAMMA * LAMBDA) ** len(rewards) * carried)
            found[chunk, epoch] = carried
    return found


def advantages_of(batch):
    """Return what the learner makes of a rollout, `[T, E]`."""
    found, _, _ = compute_embodied_advantages(
        adv_type="gae",
        rewards=batch.rewards,
        dones=batch.terminations | batch.truncations,
        terminations=batch.terminations,
        values=batch.prev_values,
        bootstrap_values=batch.bootstrap_values,
        loss_mask=batch.valid,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
    )
    return found[..., 0]


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_a_rollout_is_that_of_a_robot_which_plans_ahead(delay):
    policy = make_policy(delay)
    worker = Worker(policy, delay)
    EnvWorker.interact.__wrapped__(worker)
    slow, values = one_action_at_a_time(policy, delay)
    batch = EmbodiedBatch.join(worker.of_envs, worker.of_policy)
    assert not bool(batch.valid.all()), "episodes end in the middle of chunks"
    expected = slow_advantages(slow, values)
    torch.testing.assert_close(advantages_of(batch), expected, rtol=1e-3, atol=1e-3)
    for epoch in range(EPOCHS):
        for chunk in range(CHUNKS):
            valid = batch.valid[chunk, epoch]
            found = zip(
                batch.actions[chunk, epoch, valid, 0].tolist(),
                batch.rewards[chunk, epoch, valid].tolist(),
                strict=True,
            )
            for own, expected in zip(found, slow[epoch * CHUNKS + chunk], strict=True):
                assert own == pytest.approx(expected, abs=1e-4)


def test_a_learner_computes_what_a_rollout_did_again():
    policy = make_policy(2)
    worker = Worker(policy, 2)
    EnvWorker.interact.__wrapped__(worker)
    batch = EmbodiedBatch.join(worker.of_envs, worker.of_policy)
    decided = batch.forward_inputs["decided"]
    assert torch.equal(decided == 0, batch.begins | (torch.arange(CHUNKS) == 0)[:, None])
    inputs = {key: value.flatten(0, 1) for key, value in batch.forward_inputs.items()}
    out = policy(forward_inputs=inputs, compute_values=True)
    logprobs = out["logprobs"].view_as(batch.prev_logprobs)
    torch.testing.assert_close(logprobs, batch.prev_logprobs, rtol=1e-4, atol=1e-4)
    values = out["values"].view_as(batch.prev_values[:-1])
    torch.testing.assert_close(values, batch.prev_values[:-1], rtol=1e-4, atol=1e-4)
    # What is compared is what was done: the actions in the chain are those that the env had.
    chosen = policy.action_head.from_scaled(inputs["action"])
    done = batch.actions.flatten(0, 1)
    torch.testing.assert_close(chosen.reshape_as(done), done, rtol=0, atol=1e-6)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_values_that_are_exact_leave_no_advantage(delay):
    """Nothing depends on actions, so that none is better: not at ends that are cut off either."""
    spec = EnvSpec(obs_dim=1, action_dim=1, action_low=[-2], action_high=[2])
    policy = make_policy(delay, spec, normalize_obs=False)
    # The sum of gamma^i (t + i + 1): what the clock pays after t, if nothing cuts it off.
    policy.value_head = torch.nn.Linear(1, 1)
    policy.value_head.weight.data.fill_(1 / (1 - GAMMA))
    policy.value_head.bias.data.fill_(1 / (1 - GAMMA) + GAMMA / (1 - GAMMA) ** 2)
    worker = Worker(policy, delay, make_env(id="RtcClock-v0"))
    EnvWorker.interact.__wrapped__(worker)
    batch = EmbodiedBatch.join(worker.of_envs, worker.of_policy)
    assert batch.truncations.any() and not batch.truncations[-1].any()
    assert batch.prev_values.max() > 1.5 * batch.prev_values.min()
    torch.testing.assert_close(advantages_of(batch), torch.zeros(CHUNKS, EPOCHS), rtol=0, atol=1e-3)


def test_where_an_episode_ends_the_next_one_is_seen():
    def seen(number):
        return {"states": torch.full((2, 1), float(number)), "task_descriptions": [f"{number}"] * 2}

    before, chunk = seen(0), [seen(1), seen(2), seen(3)]
    infos = {"_final_observation": torch.tensor([False, True])}
    for early, number in ((1, 2), (2, 1), (3, 0)):
        running = early_observation(before, chunk, {}, early)
        assert running["states"].flatten().tolist() == [number, number]
        found = early_observation(before, chunk, infos, early)
        assert found["states"].flatten().tolist() == [number, 3]
        assert found["task_descriptions"] == [f"{number}", "3"]
