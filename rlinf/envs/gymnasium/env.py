"""The adapter of environments with Gymnasium's interface."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from rlinf.config.suggest import near
from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.errors import EnvError, MissingSimulator, StateNotSupported
from rlinf.envs.options import map_option, option
from rlinf.envs.rendering import choose_backend
from rlinf.envs.slots import SlotObs, SlotVectorEnv
from rlinf.envs.starts import Start
from rlinf.envs.step_result import ObsSpec
from rlinf.utils.extras import install_hint

ROBOTICS = ("Fetch", "Hand", "Adroit", "FrankaKitchen", "PointMaze", "AntMaze")
"""How ids of gymnasium-robotics begin."""

_SUCCESS_KEYS = ("is_success", "success")
_LEFT_KEY = "tasks_to_complete"


class GymnasiumEnv(SlotVectorEnv):
    """Slots of a registered id, or of what `factory` makes.

    Every episode begins with `env.reset(seed=...)`. The step limit is that of the config, or the
    one registered with the id. Success is `info["is_success"]` or `info["success"]` (goal envs,
    Fetch, Adroit), or that no task is left in `info["tasks_to_complete"]` (FrankaKitchen); an env
    that says none of these never succeeds, and only its return counts. Discrete, MultiDiscrete and
    MultiBinary actions are choices, one entry each.

    Checkpoints hold the actions of the running episodes, and a resumed run repeats them to get back
    to their states. An env that this does not bring back says so: it is registered as
    `nondeterministic`, or has `nondeterministic: True` in its `metadata`.

    Attributes:
        factory: Makes one env from keyword arguments; None makes the id of the config.
        own_keys: Keys of the config that are arguments of `factory`.
    """

    env_type = "gymnasium"
    opens_quickly = True
    factory: Callable[..., Any] | None = None
    own_keys: tuple[str, ...] = ()

    def _open(self) -> None:
        self._wants_pictures = option(option(self.cfg, "video_cfg", {}), "save_video", False)
        if self._wants_pictures:
            choose_backend()
        try:
            import gymnasium
        except ImportError as error:
            raise MissingSimulator(
                f"Gymnasium cannot be imported ({error}): {install_hint('embodied')}"
            ) from error
        from rlinf.envs.gymnasium import spaces

        self._success_key = option(self.cfg, "success_key")
        # Otherwise until an info says so.
        self.reports_success = self._success_key is not None
        self._envs: list[Any] = [None] * self.num_envs
        self._kwargs = {**map_option(self.cfg, "kwargs"), **map_option(self.cfg, "init_params")}
        given = {key: option(self.cfg, key) for key in self.own_keys}
        self._kwargs.update({key: value for key, value in given.items() if value is not None})
        self._id = "" if self.factory else str(option(self.cfg, "id", ""))
        self._gymnasium = gymnasium
        if not self.factory:
            self._spec = find_spec(self._id)
        super()._open()
        first = self._envs[0]
        registered = getattr(first.spec, "nondeterministic", False)
        self.replays = not (registered or first.metadata.get("nondeterministic", False))
        self._reader = spaces.ObsReader(first.observation_space)
        self._read = self._reader.read
        self._action_spec = spaces.action_spec_of(first.action_space)
        self._to_action = spaces.action_writer(first.action_space)

    @property
    def obs_spec(self) -> dict[str, ObsSpec]:
        """States from all numbers of the observation space, images from its pictures."""
        return self._reader.spec

    @property
    def action_spec(self) -> ActionSpec:
        """Bounds of a Box, or the number of choices of a discrete space."""
        return self._action_spec

    @cached_property
    def default_max_episode_steps(self) -> int | None:
        """The limit registered with the id, or with the env of a factory."""
        spec = self._envs[0].spec if self.factory else self._spec
        return getattr(spec, "max_episode_steps", None)

    def make_slot(self, slot: int) -> None:
        """Make an env."""
        self.close_slot(slot)
        kwargs = dict(self._kwargs)
        if self._wants_pictures:
            kwargs["render_mode"] = "rgb_array"
        if self.factory:
            if not _takes(self.factory, "render_mode"):
                kwargs.pop("render_mode", None)
            self._envs[slot] = type(self).factory(**kwargs)
        else:
            # The step limit and the checks are the business of the base class.
            self._envs[slot] = self._gymnasium.make(
                self._id, max_episode_steps=-1, disable_env_checker=True, **kwargs
            )

    def reset_slot(self, slot: int, start: Start) -> SlotObs:
        """Begin the episode of a seed."""
        obs, _ = self._envs[slot].reset(seed=start.seed)
        return self._read(obs)

    def step_slot(self, slot: int, action: np.ndarray) -> tuple[SlotObs, float, bool, bool, bool]:
        """Make a step."""
        obs, reward, terminated, truncated, info = self._envs[slot].step(self._to_action(action))
        return self._read(obs), reward, terminated, truncated, self._success(info)

    def render_slot(self, slot: int) -> np.ndarray:
        """Return what the env draws."""
        picture = self._envs[slot].render()
        if picture is None:
            raise EnvError(
                f"{self._name()} draws nothing: it needs render_mode rgb_array, which "
                "video_cfg.save_video: true asks for"
            )
        return np.asarray(picture)

    def close_slot(self, slot: int) -> None:
        """Close an env."""
        if self._envs[slot] is not None:
            self._envs[slot].close()
            self._envs[slot] = None

    def get_slot_state(self, slot: int) -> Any:
        """Refuse: asked only where actions are not repeated."""
        raise StateNotSupported(
            f"{self._name()} is nondeterministic: repeating its actions does not bring it back"
        )

    def space_problems(self, actions: np.ndarray) -> str:
        """Step the first env with actions `[T, A]` and say where it belies its spaces.

        Returns:
            What is wrong; empty if nothing.
        """
        env = self._envs[0]
        obs, _ = env.reset(seed=0)
        for step, action in enumerate([None, *actions]):
            if action is not None:
                obs, reward, terminated, truncated, _ = env.step(self._to_action(action))
                if not np.isscalar(reward) and np.size(reward) != 1:
                    return f"the reward of step {step} is {reward!r}, not a number"
                if terminated or truncated:
                    break
            if not env.observation_space.contains(obs):
                where = f"step {step}" if step else "reset"
                return f"the observation of {where} is not in {env.observation_space}: {obs!r}"
        return ""

    def _success(self, info: Mapping[str, Any]) -> bool:
        if self._success_key is not None:
            if self._success_key not in info:
                raise KeyError(
                    f"info has no key '{self._success_key}' (success_key); it has "
                    f"{', '.join(map(str, info)) or 'none'}"
                )
            return _solved(self._success_key, info)
        for key in (*_SUCCESS_KEYS, _LEFT_KEY):
            if key in info:
                self.reports_success = True
                return _solved(key, info)
        return False

    def _name(self) -> str:
        return self._id or self.options.env_type

    def _describe(self, slot: int) -> str:
        return str(option(self.cfg, "task_description", self._name()))

    def _diverged(self, slot: int) -> str:
        data = getattr(self._envs[slot].unwrapped, "data", None)
        if not hasattr(data, "warning"):
            return ""
        from rlinf.envs.mujoco_utils import DIVERGED, physics_diverged

        return DIVERGED if physics_diverged(data) else ""


def _solved(key: str, info: Mapping[str, Any]) -> bool:
    value = info[key]
    return not len(value) if key == _LEFT_KEY else bool(value)


def find_spec(env_id: str) -> Any:
    """Return what Gymnasium knows of an id, loading gymnasium-robotics for its own.

    Args:
        env_id: As for `gymnasium.make`; `module:id` imports a module first.

    Returns:
        The registered spec.

    Raises:
        ValueError: There is no such id; the message lists the near ones.
        MissingSimulator: It is of gymnasium-robotics, which is not installed.
    """
    import gymnasium

    if not env_id:
        raise ValueError("the env has no id: set env.train.id to a registered one")
    if env_id.startswith(ROBOTICS):
        try:
            import gymnasium_robotics
        except ImportError as error:
            raise MissingSimulator(
                f"'{env_id}' belongs to gymnasium-robotics, which cannot be imported ({error}): "
                f"{install_hint('embodied')}"
            ) from error
        gymnasium.register_envs(gymnasium_robotics)
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        close = near(name, gymnasium.registry, 5)
        hint = f"near ones: {', '.join(close)}" if close else "rlinf check-env lists none near it"
        raise ValueError(
            f"Gymnasium has no env '{env_id}' ({error}); {hint}; `module:id` imports a module that "
            "registers it"
        ) from error


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(
        parameter.name == name or parameter.kind is parameter.VAR_KEYWORD
        for parameter in parameters
    )


_classes: dict[tuple[str, Any], type[GymnasiumEnv]] = {}


def env_cls_for(
    name: str, factory: Callable[..., Any], own_keys: tuple[str, ...] = ()
) -> type[GymnasiumEnv]:
    """Return the vector env class for a Gymnasium env class or a function that makes one.

    Args:
        name: Env type.
        factory: The class or function.
        own_keys: Keys of the config that are its arguments.

    Returns:
        A subclass of `GymnasiumEnv`, always the same.
    """
    if not callable(factory):
        raise ValueError(f"env type '{name}' is registered with {factory!r}, which makes nothing")
    key = (name, factory)
    if key not in _classes:
        content = {
            "factory": staticmethod(factory),
            "own_keys": own_keys,
            "env_type": name,
            "opens_quickly": False,
            "__module__": __name__,
        }
        _classes[key] = type(f"GymnasiumEnv_{name}", (GymnasiumEnv,), content)
    return _classes[key]
