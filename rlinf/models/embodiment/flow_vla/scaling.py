"""Shift and scale of states and actions, however statistics give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlinf.utils.precise_buffers import PreciseBuffers

EPSILON = 1e-8
MEAN_STD, QUANTILES, MIN_MAX, IDENTITY = "MEAN_STD", "QUANTILES", "MIN_MAX", "IDENTITY"
"""How statistics are used, as lerobot's `normalization_mapping` names it."""


class Affine(NamedTuple):
    """The map `x -> (x - shift) / spread`, each `[A]` float32."""

    shift: Tensor
    spread: Tensor


def affine(statistics: Mapping[str, Any], mode: str, count: int, where: str) -> Affine:
    """Return the map that brings numbers to mean 0 and deviation 1, or to [-1, 1].

    Args:
        statistics: `mean` and `std`, `q01` and `q99`, or `min` and `max`; `mask` says which
            numbers are mapped at all. They may be padded.
        mode: How to use them.
        count: A, how many numbers are mapped: the first ones.
        where: Their source, for errors.

    Raises:
        ValueError: The mode is not known, or its statistics are not there or of fewer numbers.
    """
    needed = {MEAN_STD: ("mean", "std"), QUANTILES: ("q01", "q99"), MIN_MAX: ("min", "max")}
    if mode == IDENTITY:
        return Affine(torch.zeros(count), torch.ones(count))
    if mode not in needed:
        raise ValueError(
            f"{where} is normalised by {mode}; known: {', '.join([*needed, IDENTITY])}"
        )
    missing = [name for name in needed[mode] if name not in statistics]
    if missing:
        raise ValueError(
            f"{where}: there is no {' and no '.join(missing)}; name other statistics in "
            "model.statistics_path"
        )
    one, two = (
        torch.as_tensor(statistics[name], dtype=torch.float64).flatten() for name in needed[mode]
    )
    if mode == MEAN_STD:
        shift, spread = one, two + EPSILON
    else:
        spread = (two - one) / 2.0
        shift, spread = one + spread, torch.where(spread > 0, spread, EPSILON)
    if "mask" in statistics:
        mask = torch.as_tensor(statistics["mask"], dtype=torch.bool)
        shift, spread = torch.where(mask, shift, 0.0), torch.where(mask, spread, 1.0)
    if len(shift) < count:
        raise ValueError(f"{where} are of {len(shift)} numbers, and the policy has {count}")
    return Affine(shift[:count].float(), spread[:count].float())


def of_range(low: Sequence[float], high: Sequence[float]) -> Affine:
    """Return the map that brings a range to [-1, 1]."""
    return affine({"min": low, "max": high}, MIN_MAX, len(low), "the range of actions")


class ActionScale(PreciseBuffers):
    """Between actions in the units of the env and those of the flow.

    Attributes:
        shift: Subtracted from actions, `[A]`.
        spread: What they are divided by then, `[A]`.
    """

    shift: Tensor
    spread: Tensor

    def __init__(self, own: Affine) -> None:
        super().__init__()
        self.register_buffer("shift", own.shift)
        self.register_buffer("spread", own.spread)

    def to_flow(self, actions: Tensor) -> Tensor:
        """Return actions `[..., A]` of the env in the units of the flow."""
        return (actions - self.shift) / self.spread

    def to_env(self, actions: Tensor) -> Tensor:
        """Return actions `[..., A]` of the flow in the units of the env."""
        return actions * self.spread + self.shift
