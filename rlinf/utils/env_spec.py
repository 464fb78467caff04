"""What an env tells a policy about itself, so that neither has to import the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class EnvSpec:
    """Sizes and ranges of observations and actions; None is unknown or absent.

    Bounds may be given as one number, a sequence or an array; they are kept as tuples. An
    infinite bound is no bound.

    Attributes:
        obs_dim: Numbers in `states`.
        action_dim: Numbers in one action.
        action_low: Smallest valid action, one number per dimension.
        action_high: Largest valid action, one number per dimension.
        image_shape: Height, width and channels of `main_images`.
        train_steps: Step limit of an episode of the training envs.
        action_choices: Number of choices for each number of an action, which are the whole numbers
            from `action_low` (0 if that is not given); None if they are real numbers.
        tasks: Names of the tasks of the training envs; empty where there are no such envs.
        instructions: What the envs tell a policy to do, a text per task; empty if nothing.
    """

    obs_dim: int | None = None
    action_dim: int | None = None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    image_shape: tuple[int, int, int] | None = None
    train_steps: int | None = None
    action_choices: tuple[int, ...] | None = None
    tasks: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Bring bounds and shapes into tuples and check that they fit each other."""
        for name in ("obs_dim", "action_dim"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else int(value))
        if self.action_choices is not None:
            self._complete_choices()
        if (self.action_low is None) != (self.action_high is None):
            raise ValueError("EnvSpec needs both of action_low and action_high, or neither")
        for name in ("action_low", "action_high"):
            object.__setattr__(self, name, _bounds(name, getattr(self, name), self.action_dim))
        if self.action_dim is None and self.action_low is not None:
            object.__setattr__(self, "action_dim", len(self.action_low))
        if self.action_low is not None and self.action_choices is None:
            ranges = list(zip(self.action_low, self.action_high, strict=True))
            empty = {i: span for i, span in enumerate(ranges) if not span[0] < span[1]}
            if empty:
                raise ValueError(f"action_low must be below action_high; not so in {empty}")
        if self.image_shape is not None:
            shape = tuple(int(size) for size in self.image_shape)
            if len(shape) != 3:
                raise ValueError(f"image_shape must be (height, width, channels), not {shape}")
            object.__setattr__(self, "image_shape", shape)

    def _complete_choices(self) -> None:
        choices = tuple(int(count) for count in self.action_choices)
        if not choices or min(choices) < 1:
            raise ValueError(f"action_choices must be one or more counts from 1, not {choices}")
        if self.action_dim not in (None, len(choices)):
            raise ValueError(
                f"action_choices has {len(choices)} numbers, but action_dim is {self.action_dim}"
            )
        first = 0 if self.action_low is None else self.action_low
        low = _bounds("action_low", first, len(choices))
        high = tuple(start + count - 1 for start, count in zip(low, choices, strict=True))
        if self.action_high is not None:
            given = _bounds("action_high", self.action_high, len(choices))
            if given != high:
                raise ValueError(f"action_high is {given}, but the last choices are {high}")
        for name, value in (
            ("action_choices", choices),
            ("action_dim", len(choices)),
            ("action_low", low),
            ("action_high", high),
        ):
            object.__setattr__(self, name, value)


def task_title(section: Mapping[str, Any]) -> str | None:
    """Return what an env section asks for, in a few words; None if its type says it all.

    Args:
        section: `env.train` or `env.eval`.
    """
    if section.get("tasks"):
        return ", ".join(section["tasks"])
    names = (section.get(key) for key in ("task", "id", "task_suite_name"))
    return next((str(name) for name in names if name), None)


def rollout_steps(cfg: Any, own_limit: int | None) -> int:
    """Return the steps that each env makes in one rollout.

    Args:
        cfg: `env.train` or `env.eval`.
        own_limit: Step limit that the env itself has; None is no limit.

    Raises:
        ValueError: Nobody says how long a rollout is.
    """
    steps = cfg.max_steps_per_rollout_epoch or cfg.max_episode_steps or own_limit
    if steps is None:
        raise ValueError(
            f"nobody says how long a rollout is: {cfg.env_type} has no step limit of its own; set "
            "max_episode_steps or max_steps_per_rollout_epoch of env.train and env.eval"
        )
    return steps


def _bounds(name: str, value: Any, action_dim: int | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    if isinstance(value, Real):
        if action_dim is None:
            raise ValueError(f"{name} is the single number {value}, which needs action_dim")
        value = [value] * action_dim
    values: Sequence[float] = tuple(float(item) for item in value)
    if action_dim is not None and len(values) != action_dim:
        raise ValueError(f"{name} has {len(values)} numbers, but action_dim is {action_dim}")
    if any(math.isnan(item) for item in values):
        raise ValueError(f"{name} holds NaN: {values}")
    return values
