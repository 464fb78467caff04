"""Experts: whoever chooses good actions without having been trained here, by name.

An env brings its own under the name `scripted`, a project registers others, and a person at a
device is one too (`rlinf.envs.device`). Episodes are collected with them (`rlinf collect`), and
DAgger asks them for labels.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from rlinf.config.plugins import load_extension
from rlinf.config.signatures import Call, check_call, check_method
from rlinf.config.suggest import did_you_mean
from rlinf.envs.action_utils import ActionSpec

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


_targets: dict[tuple[str, str], Any] = {
    ("", "random"): RandomExpert,
    ("metaworld", SCRIPTED): "rlinf.envs.metaworld.expert:MetaWorldExpert",
}
"""By env type, empty for all of them, and name: a class, a function, or the path of one."""


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
    if target is None:

        def decorate(target: Any) -> Any:
            register_expert(name, target, env_type=env_type, replaces=replaces)
            return target

        return decorate
    key = env_type.lower(), name.lower()
    if not isinstance(target, str):
        what = f"expert '{name}'"
        check_call(what, target, _CONSTRUCTOR)
        for method, call in _METHODS.items():
            check_method(what, target, method, call)
    known = _targets.get(key)
    if known is not None and not replaces and _path(known) != _path(target):
        whose = f" of env type {env_type}" if env_type else ""
        raise ValueError(
            f"expert '{name}'{whose} is already {_path(known)}; choose another name, or pass "
            "replaces=True to take its place"
        )
    _targets[key] = target
    return None


def known_experts(env_type: str) -> list[str]:
    """Return the names of the experts that an env type has, sorted."""
    load_extension()
    return sorted({name for of, name in _targets if of in ("", env_type.lower())})


def is_realtime(name: str, env_type: str) -> bool:
    """Return whether an expert is known to be a person, without making it."""
    known_experts(env_type)
    return bool(getattr(_find(name, env_type), "realtime", False))


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
    env_type = str(cfg["env_type"]).lower()
    names = known_experts(env_type)
    target = _find(name, env_type)
    if target is None:
        hint = did_you_mean(name, names)
        raise ValueError(
            f"env type {env_type} has no expert '{name}'; it has: {', '.join(names)}. "
            f"{hint + ' ' if hint else ''}"
            f'Bring one with rlinf.envs.register_expert("{name}", env_type="{env_type}") in a '
            "module that runner.ext_modules names"
        )
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        target = getattr(importlib.import_module(module), attribute)
    return target(cfg, action_spec, num_envs=num_envs, seed=seed)


def _find(name: str, env_type: str) -> Any:
    own = _targets.get((env_type.lower(), name.lower()))
    return own or _targets.get(("", name.lower()))


def _path(target: Any) -> str:
    # A module that is imported again defines its classes again.
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', target)}"
