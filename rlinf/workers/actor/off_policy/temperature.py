"""The weight of entropy, fixed or tuned to an entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlinf.algorithms.off_policy.losses import (
    temperature,
    temperature_base,
    temperature_gradient,
)
from rlinf.hybrid_engines.fsdp.optimizer import ScheduledOptimizer


class Temperature:
    """Alpha, with an optimiser of its own; the same on all ranks.

    Args:
        cfg: the `entropy_tuning` section.
        target_entropy: what entropy is tuned to, where the section says nothing.
        device: where to compute.
        total_steps: gradient steps of the whole run, for schedules.

    Attributes:
        target_entropy: what entropy is tuned to; None if alpha is fixed.
    """

    def __init__(
        self, cfg: Any, target_entropy: float, device: torch.device, total_steps: int
    ) -> None:
        self._kind = cfg.alpha_type
        self.target_entropy = None
        self._fixed = torch.tensor(cfg.initial_alpha, device=device)
        if self._kind == "fixed_alpha":
            return
        given = cfg.target_entropy
        self.target_entropy = target_entropy if given is None else given
        self._base = nn.Parameter(temperature_base(cfg.initial_alpha, self._kind).to(device))
        named = [("temperature", self._base)]
        self._optimizer = ScheduledOptimizer("temperature", named, lambda name: False, fused=True)
        self._optimizer.follow(cfg.optim, total_steps)

    @property
    def alpha(self) -> Tensor:
        """The weight, `[]`, without gradient."""
        if self.target_entropy is None:
            return self._fixed
        return temperature(self._base.detach(), self._kind)

    def tune(self, entropy: Tensor, progress: int) -> None:
        """Make a step towards the target.

        Args:
            entropy: mean entropy over the global batch, `[]`.
            progress: gradient steps planned so far, which the schedule follows.
        """
        if self.target_entropy is None:
            return
        with torch.no_grad():
            self._base.grad = temperature_gradient(
                self._base, entropy, self.target_entropy, self._kind
            )
        self._optimizer.set_progress(progress)
        self._optimizer.step_if_finite(self._base.grad.abs())
        self._base.grad = None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        if self.target_entropy is None:
            return {}
        tensors = {"base": self._base.detach(), **self._optimizer.state_tensors()}
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned; nothing of it if alpha was or is fixed."""
        if self.target_entropy is None or not state:
            return
        with torch.no_grad():
            own = {"base": self._base.detach(), **self._optimizer.state_tensors()}
            for name, tensor in own.items():
                tensor.copy_(state[name])
