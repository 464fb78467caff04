"""Turns what a policy outputs into what an env takes and back, from what both sides declare.

The actions of a policy have an `ActionConvention` (`env.train.action_convention`), those of an env
an `ActionSpec`; nothing here knows a model or an env by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Gripper:
    """How one entry of an action opens and closes a gripper.

    Attributes:
        index: Which entry; negative counts from the end.
        opened: Value that opens it.
        closed: Value that closes it.
        binary: Only these two values are meant: what is nearer to `opened` opens.
    """

    index: int = -1
    opened: float = 1.0
    closed: float = -1.0
    binary: bool = False


@dataclass(frozen=True)
class ActionSpec:
    """Actions that an env takes.

    Attributes:
        low: Least value of every entry, `[A]`; may be infinite.
        high: Greatest value of every entry, `[A]`; may be infinite.
        clip: Clip actions to `low` and `high` before the env gets them.
        choices: Number of choices for every entry, `[A]`, which are the whole numbers from `low`
            to `high`; None if entries are real numbers.
        gripper: Entry that moves a gripper; None if there is none.
    """

    low: np.ndarray
    high: np.ndarray
    clip: bool = True
    choices: tuple[int, ...] | None = None
    gripper: Gripper | None = None

    @property
    def dim(self) -> int:
        """Entries of an action, `A`."""
        return len(self.low)

    @property
    def dtype(self) -> type:
        """Type of actions: int64 for choices, else float32."""
        return np.float32 if self.choices is None else np.int64

    @classmethod
    def box(cls, low: Any, high: Any, **kwargs: Any) -> ActionSpec:
        """Make a spec of continuous actions from bounds of any shape."""
        as_row = [np.asarray(bound, dtype=np.float32).reshape(-1) for bound in (low, high)]
        return cls(*as_row, **kwargs)

    @classmethod
    def choice(cls, counts: Any, start: Any = 0) -> ActionSpec:
        """Make a spec of one choice, or of several at a time.

        Args:
            counts: Number of choices; of any shape.
            start: Number of the first one; of the same shape, or one for all.
        """
        counts = np.asarray(counts, dtype=np.int64).reshape(-1)
        low = np.zeros(len(counts), np.float32)
        low += np.asarray(start).reshape(-1)
        return cls(low, (low + counts - 1).astype(np.float32), choices=tuple(counts.tolist()))

    def sample(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        """Draw actions uniformly, `[*shape, A]` of `dtype`; an infinite bound counts as 1."""
        if self.choices is not None:
            low, counts = self.low.astype(np.int64), np.array(self.choices)
            return low + rng.integers(counts, size=(*shape, self.dim))
        low = np.where(np.isfinite(self.low), self.low, -1.0)
        high = np.where(np.isfinite(self.high), self.high, 1.0)
        return rng.uniform(low, high, size=(*shape, self.dim)).astype(np.float32)

    def as_choices(self, actions: np.ndarray, live: np.ndarray) -> np.ndarray:
        """Return choices as whole numbers.

        Args:
            actions: `[B, ..., A]`, of any type.
            live: Slots whose actions matter, bool `[B]`; the others may hold anything.

        Returns:
            int64 `[B, ..., A]`.

        Raises:
            ValueError: One of them is not a choice.
        """
        whole = actions.astype(np.int64, copy=False)
        wrong = (whole != actions) | (whole < self.low) | (whole > self.high)
        if wrong.any() and wrong[live].any():
            wrong[~live] = False
            slot, *rest = place = tuple(np.argwhere(wrong)[0].tolist())
            low, high = int(self.low[rest[-1]]), int(self.high[rest[-1]])
            raise ValueError(
                f"the action that the policy gave for slot {slot} is {actions[place]} at index "
                f"{rest}, but the env takes the whole numbers {low} to {high}: give it a policy "
                "with a categorical distribution, whose outputs are finite"
            )
        return whole


@dataclass(frozen=True)
class ActionConvention:
    """Actions that a policy gives.

    Attributes:
        units: `env` for the env's own units; `unit` for entries in [-1, 1] that are stretched to
            the env's bounds.
        layout: Which entries of the policy's output the env gets, in its order; empty for all. A
            policy with position, rotation and gripper drives an arm without rotation by
            `(0, 1, 2, 6)`.
        gripper: Entry, counted after `layout`, that moves a gripper; it is translated to the env's.
        dim: Entries of an action of the policy; None is as many as `layout` needs, or the env has.
    """

    units: str = "env"
    layout: tuple[int, ...] = ()
    gripper: Gripper | None = None
    dim: int | None = None

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, Any] | None) -> ActionConvention | None:
        """Read the key `action_convention` of an env section; None if that is null."""
        if cfg is None:
            return None
        given = dict(cfg)
        gripper = given.get("gripper")
        given["gripper"] = None if gripper is None else Gripper(**gripper)
        return cls(**given | {"layout": tuple(given.get("layout") or ())})

    def size(self, spec: ActionSpec) -> int:
        """Return the entries of an action of the policy."""
        return self.dim or max((index + 1 for index in self.layout), default=spec.dim)

    def __post_init__(self) -> None:
        """Refuse units that nobody defined."""
        if self.units not in ("env", "unit"):
            raise ValueError(f"units '{self.units}' are not known; allowed: env, unit")


def prepare_actions(
    raw_chunk_actions: Any,
    spec: ActionSpec,
    convention: ActionConvention | None = None,
    num_action_chunks: int | None = None,
) -> np.ndarray:
    """Convert actions of a policy to those of an env.

    Args:
        raw_chunk_actions: Output of the policy, `[B, C, A']`, or `[B, C * A']` with
            `num_action_chunks`; tensor on any device, or array.
        spec: What the env takes.
        convention: What the policy gives; by default the env's own units.
        num_action_chunks: `C`; needed only for flat actions.

    Returns:
        `[B, C, A]` of `spec.dtype`.

    Raises:
        ValueError: The shapes do not fit.
    """
    convention = convention or ActionConvention()
    actions = _to_numpy(raw_chunk_actions)
    if actions.ndim == 2:
        chunks = num_action_chunks or 1
        if actions.shape[1] % chunks:
            raise ValueError(
                f"{actions.shape[1]} entries per env cannot be cut into {chunks} actions"
            )
        actions = actions.reshape(len(actions), chunks, -1)
    if actions.ndim != 3:
        raise ValueError(f"actions have shape {list(actions.shape)}; expected [envs, chunk, dim]")
    if convention.layout:
        actions = actions[..., list(convention.layout)]
    if actions.shape[-1] != spec.dim:
        raise ValueError(
            f"the policy gives actions of {actions.shape[-1]} entries, the env takes {spec.dim}: "
            "set actor.model.action_dim, or declare a layout in the policy's ActionConvention"
        )
    result = np.array(actions, dtype=np.float32)
    if convention.units == "unit":
        result = _stretch(result, spec)
    if convention.gripper and spec.gripper:
        _translate_gripper(actions, result, convention.gripper, spec.gripper)
    if spec.choices is not None:
        np.rint(result, out=result)
    if spec.clip:
        np.clip(result, spec.low, spec.high, out=result)
    return result.astype(spec.dtype, copy=False)


def policy_spec(spec: ActionSpec, convention: ActionConvention | None) -> ActionSpec:
    """Return the actions of an env as its policy gives them.

    Args:
        spec: What the env takes.
        convention: What the policy gives; None is the same.
    """
    if convention is None:
        return spec
    size = convention.size(spec)
    low, high = np.full(size, -1.0), np.full(size, 1.0)
    places = list(convention.layout or range(spec.dim))
    if convention.units == "env":
        low[places], high[places] = spec.low, spec.high
    if convention.gripper and spec.gripper:
        own, place = convention.gripper, places[convention.gripper.index]
        low[place], high[place] = sorted((own.opened, own.closed))
    return ActionSpec.box(low, high)


def restore_actions(
    actions: Any, spec: ActionSpec, convention: ActionConvention | None
) -> np.ndarray:
    """Convert actions of an env to those of its policy; `prepare_actions` brings them back.

    Args:
        actions: In the units of the env, `[..., A]`.
        spec: What the env takes.
        convention: What the policy gives.

    Returns:
        `[..., A']`; entries that the env does not take are 0.
    """
    actions = np.asarray(actions)
    if convention is None:
        return actions
    own = np.array(actions, dtype=np.float32)
    if convention.units == "unit":
        own = _shrink(own, spec)
    if convention.gripper and spec.gripper:
        _translate_gripper(actions, own, spec.gripper, convention.gripper)
    result = np.zeros((*actions.shape[:-1], convention.size(spec)), np.float32)
    result[..., list(convention.layout or range(spec.dim))] = own
    return result


def _to_numpy(actions: Any) -> np.ndarray:
    if hasattr(actions, "detach"):
        actions = actions.detach().float().cpu().numpy()
    return np.asarray(actions)


def _stretch(actions: np.ndarray, spec: ActionSpec) -> np.ndarray:
    if spec.choices is not None:
        # Equal parts of [-1, 1], one for each choice.
        return spec.low + np.floor((actions + 1) / 2 * np.array(spec.choices, np.float32))
    bounded = np.isfinite(spec.low) & np.isfinite(spec.high)
    low, high = np.where(bounded, spec.low, -1), np.where(bounded, spec.high, 1)
    # Written so that bounds of -1 and 1 change no bit.
    return ((low + high) / 2 + actions * ((high - low) / 2)).astype(np.float32)


def _shrink(actions: np.ndarray, spec: ActionSpec) -> np.ndarray:
    """Undo `_stretch`; a choice becomes the middle of its part."""
    if spec.choices is not None:
        counts = np.array(spec.choices, np.float32)
        return ((actions - spec.low + 0.5) / counts * 2 - 1).astype(np.float32)
    bounded = np.isfinite(spec.low) & np.isfinite(spec.high)
    low, high = np.where(bounded, spec.low, -1), np.where(bounded, spec.high, 1)
    return ((actions - (low + high) / 2) / ((high - low) / 2)).astype(np.float32)


def _translate_gripper(
    actions: np.ndarray, result: np.ndarray, given: Gripper, wanted: Gripper
) -> None:
    openness = (actions[..., given.index] - given.closed) / (given.opened - given.closed)
    if given.binary or wanted.binary:
        openness = (openness > 0.5).astype(np.float32)
    result[..., wanted.index] = wanted.closed + openness * (wanted.opened - wanted.closed)
