"""What is put into a replay buffer, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rlinf.data.embodied import EmbodiedBatch, FinalObservations
from rlinf.data.replay.fields import flatten


@dataclass(kw_only=True)
class ReplayTrajectory:
    """T chunk steps of B envs, time first; each step of an env is a row of the buffer.

    Attributes:
        obs: the observations that were acted on, raw; dicts of dicts of tensors `[T, B, ...]`.
            Pictures are best left uint8: each tensor is kept in its own type.
        actions: what was carried out, `[T, B, C, ...]`.
        rewards: float32 `[T, B, C]`.
        terminations: bool `[T, B, C]`.
        truncations: bool `[T, B, C]`.
        valid: which actions were carried out, bool `[T, B, C]`; None is all. A step without any
            is no row.
        intervened: which actions somebody else than the policy chose, bool `[T, B, C]`; None is
            none.
        begins: which steps are the first of an episode, bool `[T, B]`; None is those that follow
            the end of one.
        versions: of the weights that acted, int64 `[T, B]`; None is -1, no policy of this run.
        usable: which steps may be drawn, bool `[T, B]`; None is all.
        final: the observations in which episodes ended; all truncated ones are needed.
        extras: further tensors `[T, B, ...]` to keep with each row.
        streams: a name for each env, the same in each trajectory, so that episodes go on from one
            to the next; None if each trajectory stands alone.
    """

    obs: Mapping[str, Any]
    actions: Tensor
    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    valid: Tensor | None = None
    intervened: Tensor | None = None
    begins: Tensor | None = None
    versions: Tensor | None = None
    usable: Tensor | None = None
    final: FinalObservations | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    streams: Sequence[int | str] | None = None

    @classmethod
    def of_rollout(
        cls,
        batch: EmbodiedBatch,
        obs: Mapping[str, Any],
        streams: Sequence[int | str] | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> ReplayTrajectory:
        """Take what env and rollout hand over.

        Args:
            batch: the rollout.
            obs: the observations that were acted on, raw, `[T, B, ...]` each.
            streams: a name for each env.
            extras: what else to keep.
        """
        return cls(
            obs=obs,
            actions=batch.actions,
            rewards=batch.rewards,
            terminations=batch.terminations,
            truncations=batch.truncations,
            valid=batch.valid,
            intervened=batch.intervened,
            begins=batch.begins,
            versions=batch.versions,
            usable=batch.finite,
            final=batch.final,
            extras=extras or {},
            streams=streams,
        )

    @classmethod
    def of_episode(
        cls,
        obs: Mapping[str, Any],
        actions: Tensor,
        rewards: Tensor,
        *,
        terminated: bool,
        final: Mapping[str, Any] | None = None,
    ) -> ReplayTrajectory:
        """Take one whole episode of single actions.

        Args:
            obs: the observations that were acted on, `[T, ...]` each.
            actions: `[T, ...]`.
            rewards: `[T]`.
            terminated: whether it ended in a terminal state; else it was truncated.
            final: the observation in which it ended, without a leading dimension; a truncated
                episode needs it.
        """
        ends = torch.zeros(len(rewards), 1, 1, dtype=torch.bool)
        ends[-1] = True
        never = torch.zeros_like(ends)
        last = None
        if final is not None:
            where = torch.tensor([len(rewards) - 1]), torch.tensor([0])
            last = FinalObservations(*where, _map(final, lambda value: value[None]))
        return cls(
            obs=_map(obs, lambda value: value[:, None]),
            actions=actions[:, None, None],
            rewards=rewards.float()[:, None, None],
            terminations=ends if terminated else never,
            truncations=never if terminated else ends,
            final=last,
        )

    def complete(self) -> ReplayTrajectory:
        """Return this with what was left out put in, checked.

        Raises:
            ValueError: shapes do not fit; says which.
        """
        if self.rewards.ndim != 3:
            raise ValueError(
                f"rewards have the shape {list(self.rewards.shape)}; a trajectory is [T, B, C]: "
                "steps, envs, actions of a chunk"
            )
        steps = self.rewards.shape[:2]
        whole = replace(
            self,
            valid=_or(self.valid, torch.ones_like(self.rewards, dtype=torch.bool)),
            intervened=_or(self.intervened, torch.zeros_like(self.rewards, dtype=torch.bool)),
            begins=_or(self.begins, torch.zeros(steps, dtype=torch.bool)),
            versions=_or(self.versions, torch.full(steps, -1)),
            usable=_or(self.usable, torch.ones(steps, dtype=torch.bool)),
        )
        whole._check()
        return whole

    def _check(self) -> None:
        chunk, steps = self.rewards.shape, self.rewards.shape[:2]
        for name in ("terminations", "truncations", "valid", "intervened"):
            _expect(name, getattr(self, name), chunk, 3)
        for name in ("begins", "versions", "usable"):
            _expect(name, getattr(self, name), steps, 2)
        _expect("actions", self.actions, chunk, 3)
        observed = flatten(self.obs, "obs")
        if not observed:
            raise ValueError("a trajectory has no observations; obs needs at least one tensor")
        for name, value in (observed | flatten(self.extras, "extras")).items():
            _expect(name, value, steps, 2)
        streams = self.streams
        if streams is not None and (
            len(set(streams)) != steps[1] or not all(isinstance(n, int | str) for n in streams)
        ):
            raise ValueError(
                f"streams are {list(streams)}; a trajectory of {steps[1]} envs needs as many "
                "different whole numbers or texts"
            )

    def __len__(self) -> int:
        return len(self.rewards)

    def slice(self, begin: int, end: int) -> ReplayTrajectory:
        """Return some of the steps of a complete trajectory."""
        final = self.final
        if final is not None:
            own = (final.steps >= begin) & (final.steps < end)
            obs = _map(final.obs, lambda value: value[own])
            final = FinalObservations(final.steps[own] - begin, final.envs[own], obs)
        tensors = {
            name: value[begin:end] for name, value in vars(self).items() if torch.is_tensor(value)
        }
        cut = {
            name: _map(getattr(self, name), lambda v: v[begin:end]) for name in ("obs", "extras")
        }
        return replace(self, final=final, **tensors, **cut)


@dataclass
class ReplayBatch:
    """n transitions, each over up to `n_step` rows.

    The target of a value is `rewards + bootstrap * V(next_obs)`.

    Attributes:
        obs: nested as it was put in, `[n, ...]` each.
        actions: `[n, C, ...]`.
        rewards: discounted sum over the steps, float32 `[n]`.
        next_obs: observation after the steps; at the end of an episode the final one.
        discounts: of that observation, whether it is terminal or not, float32 `[n]`.
        terminations: whether it is terminal, bool `[n]`.
        truncations: whether the episode was cut off there, bool `[n]`.
        steps: rows that were summed, int64 `[n]`.
        valid: which actions of the first row were carried out, bool `[n, C]`.
        intervened: which of them somebody else than the policy chose, bool `[n, C]`.
        versions: of the weights that acted, int64 `[n]`.
        extras: nested as it was put in, `[n, ...]` each.
        indices: serials of the first rows, int64 `[n]`, for `update_priorities`.
        weights: importance of each, float32 `[n]`; ones if draws are uniform.
    """

    obs: dict[str, Any]
    actions: Tensor
    rewards: Tensor
    next_obs: dict[str, Any]
    discounts: Tensor
    terminations: Tensor
    truncations: Tensor
    steps: Tensor
    valid: Tensor
    intervened: Tensor
    versions: Tensor
    extras: dict[str, Any]
    indices: Tensor
    weights: Tensor

    @property
    def bootstrap(self) -> Tensor:
        """Discounts, 0 where the next observation is terminal."""
        return self.discounts * ~self.terminations

    def __len__(self) -> int:
        return len(self.rewards)

    def to(self, device: torch.device | str) -> ReplayBatch:
        """Return the batch on a device."""
        if self.rewards.device == torch.device(device):
            return self
        return type(self)(**{n: _map(v, lambda t: t.to(device)) for n, v in vars(self).items()})

    def split(self, size: int) -> list[ReplayBatch]:
        """Cut into batches of so many transitions each; the last may have fewer."""
        columns = {name: _split(value, size) for name, value in vars(self).items()}
        count = len(columns["rewards"])
        return [
            type(self)(**{name: _pick(c, i) for name, c in columns.items()}) for i in range(count)
        ]

    @classmethod
    def cat(cls, parts: Sequence[ReplayBatch]) -> ReplayBatch:
        """Join batches."""
        return cls(**{name: _cat([getattr(p, name) for p in parts]) for name in vars(parts[0])})


@dataclass
class ReplayWindows:
    """n stretches of up to L rows of an episode; what follows its end is masked.

    Attributes:
        obs: `[n, L + 1, ...]` each: position k + 1 is the next observation of row k, after the last
            row the final one. Positions behind that repeat it.
        actions: `[n, L, C, ...]`.
        rewards: discounted sum of each chunk, float32 `[n, L]`.
        discounts: of the next observation of each row, float32 `[n, L]`.
        terminations: bool `[n, L]`.
        truncations: bool `[n, L]`.
        valid: bool `[n, L, C]`.
        intervened: bool `[n, L, C]`.
        versions: int64 `[n, L]`.
        extras: `[n, L, ...]` each.
        mask: which positions are rows, bool `[n, L]`; others repeat the last row.
        indices: serials of the rows, int64 `[n, L]`.
        weights: importance of each window, float32 `[n]`.
    """

    obs: dict[str, Any]
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    terminations: Tensor
    truncations: Tensor
    valid: Tensor
    intervened: Tensor
    versions: Tensor
    extras: dict[str, Any]
    mask: Tensor
    indices: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.rewards)


def _or(value: Tensor | None, default: Tensor) -> Tensor:
    return default if value is None else value


def _expect(name: str, tensor: Tensor, shape: Sequence[int], lead: int) -> None:
    if tuple(tensor.shape[:lead]) != tuple(shape):
        raise ValueError(
            f"{name} has the shape {list(tensor.shape)}, rewards have {list(shape)}; the first "
            f"{lead} dimensions must be the same"
        )


def _map(tree: Any, function: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _map(value, function) for key, value in tree.items()}
    return function(tree)


def _split(tree: Any, size: int) -> Any:
    return _map(tree, lambda value: value.split(size))


def _pick(tree: Any, index: int) -> Any:
    return _map(tree, lambda parts: parts[index])


def _cat(trees: Sequence[Any]) -> Any:
    if isinstance(trees[0], Mapping):
        return {key: _cat([tree[key] for tree in trees]) for key in trees[0]}
    return torch.cat(list(trees))
