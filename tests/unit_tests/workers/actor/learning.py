"""A learner and rollouts to feed it, without workers: what the tests of the actor share."""

from __future__ import annotations

import copy
from typing import Any

import torch

from rlinf.algorithms.masks import until_done_in_chunk
from rlinf.config import validate_cfg
from rlinf.data.embodied import EmbodiedBatch
from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.embodied_learner import EmbodiedLearner
from rlinf.workers.actor.learner import LearnerPlace

SPEC = EnvSpec(obs_dim=5, action_dim=2, action_low=[-1, -1], action_high=[1, 1])
BASE: dict[str, Any] = {
    "cluster": {"component_placement": {"actor,rollout,env": "0"}},
    "runner": {"task_type": "embodied", "max_steps": 10},
    "algorithm": {"adv_type": "gae", "loss_type": "actor_critic", "normalize_advantages": False},
    "env": {"train": {"env_type": "metaworld", "total_num_envs": 8, "max_episode_steps": 12}},
    "rollout": {},
    "actor": {
        "model": {"model_type": "mlp_policy", "add_value_head": True, "hidden_sizes": [16]},
        "optim": {"lr": 1e-2, "weight_decay": 0.0},
    },
}
GRPO = {
    "algorithm.adv_type": "grpo",
    "algorithm.loss_type": "actor",
    "algorithm.group_size": 4,
    "actor.model.add_value_head": False,
    "env.train.auto_reset": False,
}


def make_cfg(changes: dict[str, Any] | None = None) -> Any:
    """The base config with some keys, given by path, set to something else."""
    data = copy.deepcopy(BASE)
    for path, value in (changes or {}).items():
        *parents, key = path.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = copy.deepcopy(value)
    return validate_cfg(data)


def make_policy(cfg: Any, seed: int = 0) -> Any:
    """A policy with observations that are normalised by statistics of its own."""
    torch.manual_seed(seed)
    policy = get_model(cfg.actor.model, SPEC, torch.float32)
    policy.update_normalizer({"states": torch.randn(100, 5) * 2 + 1})
    return policy


def make_learner(cfg: Any, **kwargs: Any) -> EmbodiedLearner:
    """A learner on the CPU; what it says is in its list `said`."""
    torch.set_num_threads(1)
    said: list[str] = []
    place = LearnerPlace(torch.device("cpu"), seed=3, warn=said.append, **kwargs)
    learner = EmbodiedLearner(cfg, make_policy(cfg), place)
    learner.said = said
    return learner


def rollout(
    policy: Any,
    steps: int = 12,
    envs: int = 8,
    seed: int = 0,
    mid_chunk: bool = False,
    picture_size: int | None = None,
) -> EmbodiedBatch:
    """What a policy does on random observations, with random rewards and ends of episodes.

    Args:
        policy: Acts.
        steps: Chunks of each env.
        envs: How many there are.
        seed: Of everything.
        mid_chunk: Let episodes end inside of chunks.
        picture_size: Height and width of pictures of two cameras; None is no cameras.
    """
    g = torch.Generator().manual_seed(seed)
    chunks, actions = policy.num_action_chunks, policy.action_dim
    states = torch.randn(steps + 1, envs, 5, generator=g)
    noise = torch.randn(steps, envs, policy.noise_width, generator=g)
    seen = [{"states": own, "task_descriptions": ["open it"] * envs} for own in states]
    for obs in seen if picture_size is not None else ():
        shape = (envs, 2, picture_size, picture_size, 3)
        pictures = torch.randint(0, 256, shape, generator=g, dtype=torch.uint8)
        obs |= {"main_images": pictures[:, 0], "wrist_images": pictures[:, 1:]}
    results = [
        policy.predict_action_batch(obs, noise=n)[1]
        for obs, n in zip(seen[:-1], noise, strict=True)
    ]
    values = [result["prev_values"] for result in results]
    values.append(policy.predict_values(seen[-1]))
    ends = torch.zeros(steps, envs, chunks, dtype=torch.bool)
    ends[..., -1] = torch.rand(steps, envs, generator=g) < 0.15
    if mid_chunk:
        at = torch.randint(0, chunks, (steps, envs, 1), generator=g)
        ends = ends.any(-1, keepdim=True) & (torch.arange(chunks) == at)
    return EmbodiedBatch(
        forward_inputs={
            key: torch.stack([result["forward_inputs"][key] for result in results])
            for key in results[0]["forward_inputs"]
        },
        prev_logprobs=torch.stack([result["prev_logprobs"] for result in results]),
        prev_values=torch.stack(values),
        bootstrap_values=torch.zeros_like(values[0]).repeat(steps, 1, 1),
        rewards=torch.randn(steps, envs, chunks, generator=g),
        terminations=ends,
        truncations=torch.zeros_like(ends),
        valid=until_done_in_chunk(ends),
        begins=torch.zeros(steps, envs, dtype=torch.bool),
        actions=noise[..., : chunks * actions].reshape(steps, envs, chunks, actions),
        intervened=torch.zeros_like(ends),
        versions=torch.zeros(steps, envs, dtype=torch.long),
        finite=torch.ones(steps, envs, dtype=torch.bool),
    )


def columns(batch: EmbodiedBatch, envs: Any) -> EmbodiedBatch:
    """The part of a rollout that some envs have."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(item) for key, item in value.items()}
        return None if value is None else value[:, envs].clone()

    return EmbodiedBatch(**{name: cut(value) for name, value in vars(batch).items()})


def learn(learner: EmbodiedLearner, batch: EmbodiedBatch) -> tuple[dict[str, float], ...]:
    """One rollout's credit and update; returns the metrics of both."""
    envs = batch.rewards.shape[1]
    return learner.prepare(batch, range(100, 100 + envs)), learner.update()


def weights(learner: EmbodiedLearner) -> dict[str, torch.Tensor]:
    """What is trained, whole."""
    return {
        name: tensor.clone()
        for name, tensor in learner.engine.full_tensors()
        if not name.startswith("normalizer.")
    }


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The greatest difference of any weight."""
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)
