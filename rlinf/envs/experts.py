"""Experts: whoever chooses good actions without having been trained here, by name.

An env brings its own under the name `scripted`, a project registers others, and a person at a
device is one too (`rlinf.envs.device`). Episodes are collected with them (`rlinf collect`), and
DAgger asks them for labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from rlinf.config.signatures import Call
from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.target_table import TargetTable

SCRIPTED = "scripted"
"""Name of the expert that an env brings along."""

_CONSTRUCTOR = Call(("cfg", "action_spec"), ("num_envs", "seed"))
_METHODS = {"act": Call(("obs", "slots")), "begin": Call(("slots", "episodes"))}


class Expert(ABC):
    """Chooses actions for the slots of a vector env, from what they observe.

    Args:
        cfg: `env.train` or `env.eval`.
        action_spec: The actions that the env takes.
        num_envs: Slots, `B`.
        seed: Of what it draws.

    Attributes:
        realtime: A person has to keep up: whoever asks keeps to the rate of the dataset.
        is_policy: It sees what policies see, and its actions are theirs (`VectorEnv.policy_spec`);
            else nothing is hidden from it, and its actions are those of the env.
    """

    realtime: ClassVar[bool] = False
    is_policy: ClassVar[bool] = False

    def __init__(
        self, cfg: Any, action_spec: ActionSpec, *, num_envs: int = 1, seed: int = 0
    ) -> None:
        self.cfg, self.action_spec, self.num_envs, self.seed = cfg, action_spec, num_envs, seed

    def begin(self, slots: Sequence[int], episodes: Sequence[int]) -> None:  # noqa: B027
        """Take note that episodes begin.

        Args:
            slots: Where.
            episodes: Number of each, from 0; what an expert draws should depend on nothing else.
        """

    @abstractmethod
    def act(self, obs: dict[str, Any], slots: Sequence[int]) -> np.ndarray:
        """Choose actions.

        Args:
            obs: Observations of all slots, see `VectorEnv`.
            slots: Those in which an episode runs.

        Returns:
            `[len(slots), A]` in the units of the env. Whoever executes them clips them first.
        """

    def wants_to_act(self, slot: int) -> bool:
        """Return whether it would take over from a policy in a slot; asked after `act`."""
        return True

    def discards(self, slot: int) -> bool:
        """Return whether the episode that has just ended in a slot is not to be kept."""
        return False

    def close(self) -> None:  # noqa: B027
        """Free what it holds."""


class RandomExpert(Expert):
    """Draws actions uniformly; the opposite of an expert, for data of mixed quality."""

    def __init__(
        self, cfg: Any, action_spec: ActionSpec, *, num_envs: int = 1, seed: int = 0
    ) -> None:
        super().__init__(cfg, action_spec, num_envs=num_envs, seed=seed)
        self._generators: dict[int, np.random.Generator] = {}

    def begin(self, slots: Sequence[int], episodes: Sequence[int]) -> None:
        """Seed the draws of each episode by its number."""
        for slot, episode in zip(slots, episodes, strict=True):
            self._generators[slot] = np.random.default_rng([self.seed, episode])

    def act(self, obs: dict[str, Any], slots: Sequence[int]) -> np.ndarray:
        """See `Expert.act`."""
        return np.stack([self.action_spec.sample(self._generators[slot]) for slot in slots])


_experts = TargetTable(
    "expert",
    {
        ("", "random"): RandomExpert,
        ("metaworld", SCRIPTED): "rlinf.envs.metaworld.expert:MetaWorldExpert",
    },
    _CONSTRUCTOR,
    _METHODS,
)


def register_expert(
    name: str, target: Any = None, *, env_type: str = "", replaces: bool = False
) -> Callable[[Any], Any] | None:
    """Register an expert, as a call or as a decorator.

    Args:
        name: What the user writes as `collect.policy` or `algorithm.dagger.expert`; case does not
            matter. `scripted` is the one that an env brings along.
        target: An `Expert` class, a function that is called like one and returns one, or the path
            of either as text, `package.module:name`. None to use as a decorator.
        env_type: The env type that it is for; empty is all.
        replaces: Take the place of whoever has the name.

    Returns:
        A decorator if `target` is None.

    Raises:
        ValueError: The name is taken, or the expert cannot be called as experts are.
    """
    return _experts.register(name, target, env_type=env_type, replaces=replaces)


def is_realtime(name: str, env_type: str) -> bool:
    """Return whether an expert is known to be a person, without making it."""
    return bool(getattr(_experts.lookup(name, env_type), "realtime", False))


def make_expert(
    name: str, cfg: Any, action_spec: ActionSpec, *, num_envs: int = 1, seed: int = 0
) -> Expert:
    """Make the expert of a name; one of the env type goes before one for all.

    Args:
        name: As registered.
        cfg: `env.train` or `env.eval`; its `env_type` counts.
        action_spec: The actions that the env takes.
        num_envs: Slots.
        seed: Of what it draws.

    Raises:
        ValueError: The env type has no such expert; the message says which it has.
    """
    target = _experts.lookup(name, str(cfg["env_type"]))
    return target(cfg, action_spec, num_envs=num_envs, seed=seed)
