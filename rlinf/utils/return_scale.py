"""Scales rewards by the running deviation of discounted returns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class ReturnScale:
    """Keeps the variance of G_t = r_t + gamma * G_{t-1} per env, which episode ends clear.

    Attributes:
        mean: running mean of G.
        var: running variance of G.
        count: number of values seen.
    """

    def __init__(self, gamma: float, clip: float = 10.0):
        self._gamma = gamma
        self._clip = clip
        self._returns: Tensor | None = None
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4

    def apply(
        self, rewards: Tensor, dones: Tensor, all_reduce: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Adds a rollout to the statistics and returns its rewards, scaled and clipped.

        Args:
            rewards: `[T, B, C]`.
            dones: `[T, B, C]`.
            all_reduce: sums a tensor over ranks, in place.
        """
        steps, envs, chunk = rewards.shape
        flat = rewards.transpose(1, 2).reshape(steps * chunk, envs).double()
        ends = dones.transpose(1, 2).reshape(steps * chunk, envs)
        running = self._returns
        if running is None or len(running) != envs:
            running = torch.zeros(envs, dtype=torch.float64)
        seen = torch.empty_like(flat)
        for t in range(len(flat)):
            running = running * self._gamma + flat[t]
            seen[t] = running
            running = torch.where(ends[t], 0.0, running)
        self._returns = running
        sums = torch.stack([seen.sum(), (seen**2).sum(), torch.tensor(float(seen.numel()))])
        if all_reduce is not None:
            sums = all_reduce(sums)
        total, squares, count = sums.tolist()
        mean = total / count
        self._merge(mean, max(0.0, squares / count - mean**2), count)
        return (rewards / (self.var + 1e-8) ** 0.5).clamp(-self._clip, self._clip)

    def _merge(self, mean: float, var: float, count: float) -> None:
        delta, total = mean - self.mean, self.count + count
        spread = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.var, self.count = spread / total, total

    def state_dict(self) -> dict[str, float | Tensor | None]:
        """The statistics, for checkpoints."""
        return {"mean": self.mean, "var": self.var, "count": self.count, "returns": self._returns}

    def load_state_dict(self, state: dict[str, float | Tensor | None]) -> None:
        """Goes on from statistics that `state_dict` returned."""
        self.mean, self.var, self.count = state["mean"], state["var"], state["count"]
        self._returns = state["returns"]
