"""What embodied workers hand over after a rollout: trajectories, time first.

Shapes: T chunk steps, B envs, C actions in a chunk, A numbers in an action, U values per chunk (1,
or C). Every tensor of a trajectory is `[T, B, ...]` (`prev_values` has one row more), so that a
trajectory is cut and joined along its second dimension, and nobody transposes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

ENVS = 1
"""The dimension of envs."""

Trajectory = TypeVar("Trajectory", bound="EnvTrajectory | PolicyTrajectory")


@dataclass(frozen=True)
class RolloutNeeds:
    """What a learner needs of rollouts besides what all of them hold.

    Attributes:
        final_observations: the observations in which episodes ended.
        random_steps: env steps, over all envs, that begin a run with actions drawn uniformly.
        samples: the policy draws its actions; else it acts as in evaluations.
    """

    final_observations: bool = False
    random_steps: int = 0
    samples: bool = True

    def random_chunks(self, envs: int, chunk: int) -> int:
        """Return the chunk steps that begin a run with actions drawn uniformly.

        Args:
            envs: of the whole run.
            chunk: actions in a chunk.
        """
        return -(-self.random_steps // (envs * chunk))


@dataclass
class FinalObservations:
    """The observations in which the m episodes of a rollout ended.

    Attributes:
        steps: chunk step in which each ended, int64 `[m]`.
        envs: column of its env, int64 `[m]`.
        obs: what a replay buffer keeps of the observations, by name, `[m, ...]` each; see
            `BasePolicy.replay_inputs`.
    """

    steps: Tensor
    envs: Tensor
    obs: dict[str, Tensor]

    def split(self, sizes: Sequence[int]) -> list[FinalObservations]:
        """Cut into parts of so many envs each."""
        parts, begin = [], 0
        for size in sizes:
            own = (self.envs >= begin) & (self.envs < begin + size)
            obs = {key: value[own] for key, value in self.obs.items()}
            parts.append(FinalObservations(self.steps[own], self.envs[own] - begin, obs))
            begin += size
        return parts

    @staticmethod
    def merge(parts: Sequence[FinalObservations], sizes: Sequence[int]) -> FinalObservations:
        """Put parts of so many envs each side by side."""
        begins = [sum(sizes[:i]) for i in range(len(sizes))]
        envs = [part.envs + begin for part, begin in zip(parts, begins, strict=True)]
        obs = {key: torch.cat([part.obs[key] for part in parts]) for key in parts[0].obs}
        return FinalObservations(torch.cat([part.steps for part in parts]), torch.cat(envs), obs)


@dataclass(kw_only=True)
class EnvTrajectory:
    """What the envs know of a rollout.

    Attributes:
        rewards: float32 `[T, B, C]`.
        terminations: bool `[T, B, C]`.
        truncations: bool `[T, B, C]`.
        valid: bool `[T, B, C]`, whether the action was carried out: those that follow the end of
            an episode in a chunk are not, nor are those of an env that rests.
        begins: bool `[T, B]`, whether the chunk is the first of an episode.
        actions: the actions that were carried out, in the units of the env, `[T, B, C, A]`.
        intervened: bool `[T, B, C]`, whether somebody else than the policy chose the action.
        labels: what an expert would have done, in the units of the env, `[T, B, C, A]`; None if
            none was asked.
    """

    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    valid: Tensor
    begins: Tensor
    actions: Tensor
    intervened: Tensor
    labels: Tensor | None = None


@dataclass(kw_only=True)
class UnscoredTrajectory(EnvTrajectory):
    """What the envs know of a rollout, and what a reward model has to see of it.

    Attributes:
        outcomes: the observations that chunks led to, by name, `[T, B, ...]` each; those in which
            an episode ended, and not the first ones of the next.
        success: bool `[T, B]`, whether the task is solved in them; None if the env does not say.
    """

    outcomes: dict[str, Tensor]
    success: Tensor | None = None

    def scored(self, rewards: Tensor) -> EnvTrajectory:
        """Return what the learner gets: other rewards, `[T, B, C]`, and no observations."""
        own = {field.name: getattr(self, field.name) for field in fields(EnvTrajectory)}
        return EnvTrajectory(**own | {"rewards": rewards})


@dataclass(kw_only=True)
class PolicyTrajectory:
    """What the policy knows of a rollout.

    Attributes:
        forward_inputs: tensors from which log-probabilities are recomputed, `[T, B, ...]` each.
        prev_logprobs: float32 `[T, B, C*A]`.
        prev_values: float32 `[T + 1, B, U]`.
        bootstrap_values: V of the observation in which an episode ended, float32 `[T, B, U]`.
        versions: version of the weights that acted, int64 `[T, B]`.
        finite: bool `[T, B]`, whether the observations before and after the step hold no NaN.
        final: the observations in which episodes ended; None unless the learner needs them.
    """

    forward_inputs: dict[str, Tensor]
    prev_logprobs: Tensor
    prev_values: Tensor
    bootstrap_values: Tensor
    versions: Tensor
    finite: Tensor
    final: FinalObservations | None = None


@dataclass(kw_only=True)
class EmbodiedBatch(EnvTrajectory, PolicyTrajectory):
    """A rollout as the learner sees it: both trajectories of the same envs."""

    @property
    def num_samples(self) -> int:
        """Chunk steps in the batch, T * B."""
        return self.rewards.shape[0] * self.rewards.shape[1]

    @classmethod
    def join(
        cls, env: Sequence[EnvTrajectory], policy: Sequence[PolicyTrajectory]
    ) -> EmbodiedBatch:
        """Put the trajectories of several stages and epochs side by side.

        Args:
            env: of the envs.
            policy: of the policy, in the same order.
        """
        return cls(**vars(merge_trajectories(env)), **vars(merge_trajectories(policy)))


def split_trajectory(trajectory: Trajectory, sizes: Sequence[int]) -> list[Trajectory]:
    """Cut a trajectory into parts of so many envs each."""

    def split(value: Any) -> Sequence[Any]:
        if value is None:
            return [None] * len(sizes)
        if isinstance(value, FinalObservations):
            return value.split(sizes)
        if isinstance(value, Mapping):
            columns = {key: split(item) for key, item in value.items()}
            return [{key: part[i] for key, part in columns.items()} for i in range(len(sizes))]
        return value.split(list(sizes), ENVS)

    if len(sizes) == 1:
        return [trajectory]
    columns = {name: split(value) for name, value in vars(trajectory).items()}
    return [
        type(trajectory)(**{name: part[i] for name, part in columns.items()})
        for i in range(len(sizes))
    ]


def merge_trajectories(parts: Sequence[Trajectory]) -> Trajectory:
    """Put trajectories of several envs side by side; the inverse of `split_trajectory`."""
    first = parts[0]
    if len(parts) == 1:
        return first
    counts = [_num_envs(part) for part in parts]

    def merge(values: Sequence[Any]) -> Any:
        if values[0] is None:
            return None
        if isinstance(values[0], FinalObservations):
            return FinalObservations.merge(values, counts)
        if isinstance(values[0], Mapping):
            return {key: merge([value[key] for value in values]) for key in values[0]}
        return torch.cat(list(values), ENVS)

    return type(first)(
        **{name: merge([getattr(part, name) for part in parts]) for name in vars(first)}
    )


def _num_envs(trajectory: EnvTrajectory | PolicyTrajectory) -> int:
    whole = next(value for value in vars(trajectory).values() if isinstance(value, Tensor))
    return whole.shape[ENVS]
