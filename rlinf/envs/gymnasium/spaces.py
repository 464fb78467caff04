"""Turns Gymnasium's observations into arrays with fixed keys, and actions back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rlinf.envs.action_utils import ActionSpec
from rlinf.envs.step_result import ObsSpec


class ObsReader:
    """Reads observations of a space as `states`, `main_images` and `extra_view_images`.

    Pictures (uint8 `[H, W, 3]`) are kept, the first as `main_images`; all else is flattened and
    joined into `states`, in the order of the space: numbers as they are, a choice as one entry per
    choice.

    Attributes:
        spec: Shape and dtype of what is read, by key.
    """

    def __init__(self, space: spaces.Space) -> None:
        """Look at a space.

        Args:
            space: The env's observation space.

        Raises:
            ValueError: The space has parts without a fixed size.
        """
        leaves = list(_leaves(space, ()))
        self._images = [path for path, leaf in leaves if _is_image(leaf)]
        self._numbers = [(path, leaf) for path, leaf in leaves if not _is_image(leaf)]
        self.spec: dict[str, ObsSpec] = {}
        if self._numbers:
            self.size = sum(spaces.flatdim(leaf) for _, leaf in self._numbers)
            self.spec["states"] = ObsSpec((self.size,))
        shapes = [leaf.shape for _, leaf in leaves if _is_image(leaf)]
        if shapes:
            self.spec["main_images"] = ObsSpec(shapes[0], np.uint8)
        if len(shapes) > 1:
            if len(set(shapes[1:])) > 1:
                raise ValueError(f"pictures have different sizes: {shapes}; give them one size")
            self.spec["extra_view_images"] = ObsSpec((len(shapes) - 1, *shapes[1]), np.uint8)
        only = len(leaves) == 1 and isinstance(space, spaces.Box) and not shapes
        self.read: Callable[[Any], Any] = self._read_box if only else self._read_any

    def _read_box(self, obs: Any) -> np.ndarray:
        obs = np.asarray(obs).reshape(-1)
        if obs.size != self.size:
            raise ValueError(f"the observation has {obs.size} entries, its space {self.size}")
        return obs

    def _read_any(self, obs: Any) -> np.ndarray | dict[str, np.ndarray]:
        read = {}
        if self._numbers:
            parts = [_flat(leaf, _at(obs, path)) for path, leaf in self._numbers]
            read["states"] = self._read_box(np.concatenate(parts))
        if not self._images:
            return read["states"]
        read["main_images"] = _at(obs, self._images[0])
        if len(self._images) > 1:
            read["extra_view_images"] = np.stack([_at(obs, path) for path in self._images[1:]])
        return read


def action_spec_of(space: spaces.Space) -> ActionSpec:
    """Return the spec of an action space.

    Args:
        space: The env's action space.

    Raises:
        ValueError: Actions of this kind are not supported.
    """
    if isinstance(space, spaces.Box):
        return ActionSpec.box(space.low, space.high)
    if isinstance(space, spaces.Discrete):
        return ActionSpec.choice(space.n, space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return ActionSpec.choice(space.nvec, space.start)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec.choice(np.full(space.shape, 2))
    raise ValueError(
        f"actions of the kind {type(space).__name__} are not supported, only Box (numbers), "
        "Discrete, MultiDiscrete and MultiBinary (choices): wrap the env so that it takes one of "
        "these"
    )


def action_writer(space: spaces.Space) -> Callable[[np.ndarray], Any]:
    """Return a function that turns a row of the spec's actions into an action of the space."""
    if isinstance(space, spaces.Discrete):
        return lambda row: int(row[0])
    shape, dtype = space.shape, space.dtype
    if len(shape) == 1:
        return lambda row: row.astype(dtype, copy=False)
    return lambda row: row.astype(dtype).reshape(shape)


def _leaves(space: spaces.Space, path: tuple) -> Any:
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, (*path, index))
    elif space.is_np_flattenable:
        yield path, space
    else:
        where = ".".join(map(str, path)) or "the observation"
        raise ValueError(f"{where} is a {type(space).__name__}, which has no fixed size")


def _is_image(space: spaces.Space) -> bool:
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and space.shape[-1] == 3
    )


def _flat(space: spaces.Space, value: Any) -> np.ndarray:
    if isinstance(space, spaces.Box):
        return np.asarray(value).reshape(-1)
    return np.asarray(spaces.flatten(space, value))


def _at(obs: Any, path: tuple) -> Any:
    for key in path:
        if isinstance(obs, Mapping) and key not in obs:
            raise ValueError(f"the observation lacks '{key}', which is in its space")
        obs = obs[key]
    return obs
