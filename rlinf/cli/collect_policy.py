"""A trained policy as an expert: that of a checkpoint, or of a run's newest one."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf.envs import VectorEnv
from rlinf.envs.experts import Expert
from rlinf.hybrid_engines.fsdp.checkpoint import read_model
from rlinf.models import get_model
from rlinf.models.embodiment.base_policy import BasePolicy
from rlinf.models.embodiment.noise import EnvNoise
from rlinf.utils.checkpoint import Checkpoint
from rlinf.workers.env.env_worker import describe_envs
from rlinf.workers.rollout.episode_server import act_in_blocks


def is_policy(name: str) -> bool:
    """Return whether `collect.policy` names a folder, and not an expert."""
    return "/" in name or Path(name).is_dir()


class PolicyExpert(Expert):
    """Acts as a policy does, one action of a chunk after the other.

    Args:
        policy: The policy.
        env: The envs that it acts in.
        sample: Draw actions; else take those of evaluations.
        seed: Of the draws.
    """

    is_policy = True

    def __init__(self, policy: BasePolicy, env: VectorEnv, *, sample: bool, seed: int) -> None:
        super().__init__(env.cfg, env.policy_spec, num_envs=env.num_envs, seed=seed)
        self._policy, self._sample = policy.eval(), sample
        policy.set_generator(torch.Generator().manual_seed(seed))
        takes = inspect.signature(policy.predict_action_batch).parameters
        self._draws_noise = sample and "noise" in takes
        self._noise: dict[int, EnvNoise] = {}
        self._chunks: dict[int, int] = {}
        self._episodes = [-1] * env.num_envs
        self._left: dict[int, list[np.ndarray]] = {}

    @classmethod
    def load(cls, folder: str, env: VectorEnv, *, sample: bool, seed: int) -> PolicyExpert:
        """Take the policy of a checkpoint or a run.

        Args:
            folder: Where it is.
            env: The envs that it acts in.
            sample: Draw actions.
            seed: Of the draws.

        Raises:
            ValueError: There is none, or it is for other observations or actions.
        """
        checkpoint = Checkpoint.find(folder)
        config = checkpoint.manifest["config"]
        if (config.get("actor") or {}).get("model") is None or config.get("env") is None:
            raise ValueError(
                f"{checkpoint.path} is not the checkpoint of a policy that acts in envs"
            )
        section = config["actor"]["model"] | {"model_path": None, "precision": "fp32"}
        try:
            policy = get_model(section, describe_envs([env], []))
            policy.load_state_dict(read_model(checkpoint.path / "actor" / "tensors"))
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"the policy of {checkpoint.path} does not fit env.train: {error}"
            ) from error
        return cls(policy, env, sample=sample, seed=seed)

    def begin(self, slots: Sequence[int], episodes: Sequence[int]) -> None:
        """Forget what is left of the chunks of the episodes before."""
        width = self._policy.num_action_chunks * self._policy.action_dim
        for slot, episode in zip(slots, episodes, strict=True):
            self._left[slot], self._episodes[slot], self._chunks[slot] = [], episode, 0
            self._noise[slot] = EnvNoise(self.seed, [episode], width)

    def act(self, obs: dict[str, Any], slots: Sequence[int]) -> np.ndarray:
        """See `Expert.act`."""
        asking = [slot for slot in slots if not self._left[slot]]
        if asking:
            for slot, chunk in zip(asking, self._predict(obs, asking), strict=True):
                self._left[slot] = list(chunk)
        return np.stack([self._left[slot].pop(0) for slot in slots])

    def _predict(self, obs: dict[str, Any], slots: list[int]) -> np.ndarray:
        """Return chunks `[len(slots), C, A]`; those of an episode are the same in any slot."""
        policy, episodes = self._policy, [-1] * self.num_envs
        for slot in slots:
            episodes[slot] = self._episodes[slot]
        shape = self.num_envs, policy.num_action_chunks, policy.action_dim
        actions = torch.zeros(shape, dtype=policy.action_dtype)
        further = {}
        if self._draws_noise:
            further["noise"] = torch.zeros(self.num_envs, shape[1] * shape[2])
            for slot in slots:
                further["noise"][slot] = self._noise[slot].at(self._chunks[slot])[0]
                self._chunks[slot] += 1
        act_in_blocks(self._act, {**obs, **further}, episodes, actions)
        return actions[slots].numpy()

    def _act(self, obs: dict[str, Any]) -> Tensor:
        noise = obs.pop("noise", None)
        mode = "train" if self._sample else "eval"
        further = {} if noise is None else {"noise": noise}
        return self._policy.predict_action_batch(obs, mode=mode, **further)[0]
