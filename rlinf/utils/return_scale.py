"""Scale rewards by the running deviation of discounted returns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class ReturnScale:
    """Keeps the variance of G_t = r_t + gamma * G_{t-1} per env, which starts of episodes clear.

    Args:
        gamma: discount.
        clip: greatest scaled reward, either sign.
        per_chunk: gamma counts chunks of actions, and not actions.

    Attributes:
        mean: running mean of G.
        var: running variance of G.
        count: number of values seen.
    """

    def __init__(self, gamma: float, clip: float = 10.0, *, per_chunk: bool = False):
        self._gamma = gamma
        self._clip = clip
        self._per_chunk = per_chunk
        self._returns: Tensor | None = None
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4

    def apply(
        self,
        rewards: Tensor,
        dones: Tensor,
        *,
        valid: Tensor | None = None,
        begins: Tensor | None = None,
        epochs: int = 1,
        all_reduce: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Add a rollout to the statistics and return its rewards, scaled and clipped.

        Args:
            rewards: `[T, B, C]`; the B columns are those of E epochs, one after the other, in each
                of which the same envs go on.
            dones: `[T, B, C]`.
            valid: `[T, B, C]`, actions that were carried out; None is all.
            begins: `[B]`, columns whose first step is the first of an episode; None is none.
            epochs: E.
            all_reduce: sums a tensor over ranks, in place.
        """
        if valid is None:
            valid = torch.ones_like(dones)
        envs = rewards.shape[1] // epochs
        running = self._returns
        if running is None or len(running) != envs:
            running = torch.zeros(envs, dtype=torch.float64)
        seen = []
        for epoch in range(epochs):
            own = slice(epoch * envs, (epoch + 1) * envs)
            if begins is not None:
                running = torch.where(begins[own], 0.0, running)
            running, part = self._run(running, rewards[:, own], dones[:, own], valid[:, own])
            seen.append(part)
        self._returns = running
        values = torch.cat(seen)
        sums = torch.stack([values.sum(), (values**2).sum(), torch.tensor(float(len(values)))])
        if all_reduce is not None:
            sums = all_reduce(sums)
        total, squares, count = sums.tolist()
        if count:
            mean = total / count
            self._merge(mean, max(0.0, squares / count - mean**2), count)
        return (rewards / (self.var + 1e-8) ** 0.5).clamp(-self._clip, self._clip)

    def _run(
        self, running: Tensor, rewards: Tensor, dones: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return G `[B]` after the steps of an epoch, and G of each action carried out, `[m]`."""
        seen = []
        for of_chunk in zip(rewards.double(), dones, valid, strict=True):
            discount: float = self._gamma
            for reward, done, acts in zip(*(tensor.unbind(1) for tensor in of_chunk), strict=True):
                running = torch.where(acts, running * discount + reward, running)
                seen.append(running[acts])
                running = torch.where(done, 0.0, running)
                discount = 1.0 if self._per_chunk else self._gamma
        return running, torch.cat(seen)

    def _merge(self, mean: float, var: float, count: float) -> None:
        delta, total = mean - self.mean, self.count + count
        spread = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.var, self.count = spread / total, total

    def state_dict(self) -> dict[str, float | Tensor | None]:
        """Return the statistics, for checkpoints."""
        return {"mean": self.mean, "var": self.var, "count": self.count, "returns": self._returns}

    def load_state_dict(self, state: dict[str, float | Tensor | None]) -> None:
        """Go on from statistics that `state_dict` returned."""
        self.mean, self.var, self.count = state["mean"], state["var"], state["count"]
        self._returns = state["returns"]
