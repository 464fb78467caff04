"""What embodied workers hand each other; shapes: T chunk steps, B envs, C actions, A numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class EnvHalf:
    """What the envs know of a rollout; batch first, so that it can be shared out by env.

    Attributes:
        rewards: float32 `[B, T, C]`.
        terminations: bool `[B, T, C]`.
        truncations: bool `[B, T, C]`.
        valid: bool `[B, T, C]`, whether the action was carried out: those that follow the end of
            an episode in a chunk are not, nor are those of an env that rests.
        begins: bool `[B]`, whether the first step is the first of an episode.
    """

    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    valid: Tensor
    begins: Tensor


@dataclass
class RolloutHalf:
    """What the policy knows of a rollout; batch first.

    Attributes:
        forward_inputs: tensors from which log-probabilities are recomputed, `[B, T, ...]`.
        prev_logprobs: float32 `[B, T, C*A]`.
        prev_values: float32 `[B, T + 1, U]`.
        bootstrap_values: V of the observation in which an episode ended, float32 `[B, T, U]`.
        versions: version of the weights that acted, int64 `[B, T]`.
        finite: bool `[B, T]`, whether the observations before and after the step hold no NaN.
    """

    forward_inputs: dict[str, Tensor]
    prev_logprobs: Tensor
    prev_values: Tensor
    bootstrap_values: Tensor
    versions: Tensor
    finite: Tensor


@dataclass
class EmbodiedBatch:
    """A rollout as the learner sees it, time first.

    Attributes:
        forward_inputs: `[T, B, ...]` each.
        prev_logprobs: `[T, B, C*A]`.
        prev_values: `[T + 1, B, U]`.
        bootstrap_values: `[T, B, U]`.
        rewards: `[T, B, C]`.
        terminations: `[T, B, C]`.
        truncations: `[T, B, C]`.
        valid: `[T, B, C]`.
        begins: `[B]`.
        versions: `[T, B]`.
        finite: `[T, B]`.
    """

    forward_inputs: dict[str, Tensor]
    prev_logprobs: Tensor
    prev_values: Tensor
    bootstrap_values: Tensor
    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    valid: Tensor
    begins: Tensor
    versions: Tensor
    finite: Tensor

    @property
    def num_samples(self) -> int:
        """Chunk steps in the batch, T * B."""
        return self.rewards.shape[0] * self.rewards.shape[1]

    @classmethod
    def join(cls, env: Sequence[EnvHalf], rollout: Sequence[RolloutHalf]) -> EmbodiedBatch:
        """Puts the halves of several stages and epochs together, env by env.

        Args:
            env: halves of the envs.
            rollout: halves of the policy, in the same order.
        """
        names = ("rewards", "terminations", "truncations", "valid")
        of_env = {name: _time_first([getattr(half, name) for half in env]) for name in names}
        names = ("prev_logprobs", "prev_values", "bootstrap_values", "versions", "finite")
        of_policy = {name: _time_first([getattr(h, name) for h in rollout]) for name in names}
        inputs = {
            key: _time_first([half.forward_inputs[key] for half in rollout])
            for key in rollout[0].forward_inputs
        }
        begins = torch.cat([half.begins for half in env])
        return cls(forward_inputs=inputs, begins=begins, **of_policy, **of_env)


def _time_first(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, 0).transpose(0, 1).contiguous()


def split_halves(half: Any, sizes: Sequence[int]) -> list[Any]:
    """Cuts a half along its envs."""
    from rlinf.scheduler.worker.routing import split_batch

    parts = split_batch(vars(half), sizes)
    return [type(half)(**part) for part in parts]


def merge_halves(parts: Sequence[Any]) -> Any:
    """Inverse of `split_halves`."""
    from rlinf.scheduler.worker.routing import merge_batches

    return type(parts[0])(**merge_batches([vars(part) for part in parts]))
