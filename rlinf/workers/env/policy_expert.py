"""A trained policy as an expert: of a checkpoint, of a run's newest one, or an exported one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf.config.acting import EVAL_BATCH_ON_CPU
from rlinf.config.env_plugins import is_folder
from rlinf.envs import VectorEnv
from rlinf.envs.experts import Expert, make_expert
from rlinf.hybrid_engines.initial_weights import load_weights
from rlinf.models import get_model
from rlinf.models.embodiment.base_policy import BasePolicy
from rlinf.models.embodiment.noise import EnvNoise
from rlinf.models.settings import section_to_rebuild
from rlinf.utils.checkpoint import Checkpoint
from rlinf.workers.env.describe_envs import describe_envs
from rlinf.workers.rollout.episode_server import act_in_blocks


def make_env_expert(name: str, env: VectorEnv, *, seed: int) -> Expert:
    """Make an expert that is asked anew at each step.

    Args:
        name: Registered, or the folder of a trained policy.
        env: The envs that it acts in.
        seed: Of what it draws.

    Raises:
        ValueError: There is none, or it does not fit the envs.
    """
    if is_folder(name):
        return PolicyExpert.load(name, env, sample=False, seed=seed, replans=True)
    return make_expert(name, env.cfg, env.action_spec, num_envs=env.num_envs, seed=seed)


class PolicyExpert(Expert):
    """Acts as a policy does, one action of a chunk after the other.

    Args:
        policy: The policy.
        env: The envs that it acts in.
        sample: Draw actions; else take those of evaluations.
        seed: Of the draws.
        replans: Choose a new chunk at each step, of which only the first action counts: another
            may have acted since the last one.
    """

    is_policy = True

    def __init__(
        self,
        policy: BasePolicy,
        env: VectorEnv,
        *,
        sample: bool,
        seed: int,
        replans: bool = False,
    ) -> None:
        super().__init__(env.cfg, env.policy_spec, num_envs=env.num_envs, seed=seed)
        self._policy, self._sample, self._replans = policy.eval(), sample, replans
        policy.set_generator(torch.Generator().manual_seed(seed))
        takes = inspect.signature(policy.predict_action_batch).parameters
        self._draws_noise = sample and "noise" in takes
        self._noise: dict[int, EnvNoise] = {}
        self._chunks: dict[int, int] = {}
        self._episodes = [-1] * env.num_envs
        self._left: dict[int, list[np.ndarray]] = {}

    @classmethod
    def load(cls, folder: str, env: VectorEnv, **settings: Any) -> PolicyExpert:
        """Take the policy of a checkpoint, a run, or a folder that `rlinf export` wrote.

        Args:
            folder: Where it is.
            env: The envs that it acts in.
            **settings: See the class.

        Raises:
            ValueError: There is none, or it is for other observations or actions.
        """
        section, place = _find_policy(Path(folder).expanduser())
        section = section_to_rebuild(section) | {"precision": "fp32"}
        try:
            policy = get_model(section, describe_envs([env], []))
            if policy.memory_width:
                raise ValueError("it remembers what it saw, which experts cannot")
            load_weights(policy, str(place))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"the policy of {place} does not fit env.train: {error}") from error
        return cls(policy, env, **settings)

    def begin(self, slots: Sequence[int], episodes: Sequence[int]) -> None:
        """Forget what is left of the chunks of the episodes before."""
        width = self._policy.noise_width
        for slot, episode in zip(slots, episodes, strict=True):
            self._left[slot], self._episodes[slot], self._chunks[slot] = [], episode, 0
            self._noise[slot] = EnvNoise(self.seed, [episode], width)

    def act(self, obs: dict[str, Any], slots: Sequence[int]) -> np.ndarray:
        """See `Expert.act`."""
        asking = [slot for slot in slots if self._replans or not self._left[slot]]
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
            further["noise"] = torch.zeros(self.num_envs, policy.noise_width)
            for slot in slots:
                further["noise"][slot] = self._noise[slot].at(self._chunks[slot])[0]
                self._chunks[slot] += 1
        act_in_blocks(self._act, EVAL_BATCH_ON_CPU, {**obs, **further}, episodes, actions)
        return actions[slots].numpy()

    def _act(self, obs: dict[str, Any]) -> tuple[Tensor]:
        noise = obs.pop("noise", None)
        mode = "train" if self._sample else "eval"
        further = {} if noise is None else {"noise": noise}
        return (self._policy.predict_action_batch(obs, mode=mode, **further)[0],)


def _find_policy(folder: Path) -> tuple[dict[str, Any], Path]:
    """Return the model section of a trained policy, and where its weights are."""
    exported = folder / "config.json"
    if exported.is_file():
        said = json.loads(exported.read_text())
        if said.get("model_type") != "rlinf_policy":
            raise ValueError(f"{folder} is not a policy that `rlinf export` wrote")
        return said["settings"], folder
    checkpoint = Checkpoint.find(folder)
    config = checkpoint.manifest["config"]
    if (config.get("actor") or {}).get("model") is None or config.get("env") is None:
        raise ValueError(f"{checkpoint.path} is not the checkpoint of a policy that acts in envs")
    return config["actor"]["model"], checkpoint.path
