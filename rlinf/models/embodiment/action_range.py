"""From the unbounded numbers of a Gaussian to actions that an env accepts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlinf.models.embodiment.base_policy import ActionConvention
from rlinf.utils.precise_buffers import PreciseBuffers


class ActionRange(PreciseBuffers):
    """Clips to the env's range, squashes into it, or does nothing.

    The bounds are not part of the saved state: they belong to the env.

    Attributes:
        convention: The same in words.
        low: Smallest action, [A] float32.
        high: Largest action, [A] float32.
    """

    low: Tensor
    high: Tensor
    radius: Tensor
    log_radius: Tensor

    def __init__(
        self,
        action_dim: int,
        low: Sequence[float] | None,
        high: Sequence[float] | None,
        clip: bool,
        squash: bool,
    ) -> None:
        """Keeps the bounds.

        Args:
            action_dim: A, numbers in one action.
            low: Smallest action; None is unknown.
            high: Largest action; None is unknown.
            clip: Clip actions to the range, if it is known.
            squash: Bring actions into the range by tanh instead.

        Raises:
            ValueError: Actions are to be squashed into a range that is unknown or infinite, or
                there are not `action_dim` bounds.
        """
        super().__init__()
        known = low is not None and high is not None
        for name, bounds in (("low", low), ("high", high)):
            if known and len(bounds) != action_dim:
                raise ValueError(f"action_{name} has {len(bounds)} numbers, not {action_dim}")
        # Plain numbers are asked, not tensors: those of a model on the meta device have no values.
        numbers = [*low, *high] if known else [math.inf]
        lows = torch.tensor(low if known else [-math.inf] * action_dim, dtype=torch.float32)
        highs = torch.tensor(high if known else [math.inf] * action_dim, dtype=torch.float32)
        radius = (highs - lows) / 2
        if squash and not all(map(math.isfinite, numbers)):
            raise ValueError(
                f"squash_actions needs finite bounds of the actions; the env says {low} to {high}"
            )
        bounded = any(map(math.isfinite, numbers))
        self.convention = ActionConvention(
            tuple(low) if known else None,
            tuple(high) if known else None,
            clip=clip and bounded and not squash,
            squash=squash,
        )
        for name, value in (("low", lows), ("high", highs), ("radius", radius)):
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("log_radius", radius.log(), persistent=False)

    def forward(self, action: Tensor) -> Tensor:
        """Returns actions in the units of the env, never the same memory as the argument.

        Args:
            action: What the distribution gave, [B, C, A].

        Returns:
            [B, C, A].
        """
        if self.convention.squash:
            return torch.addcmul(self.low, action.tanh() + 1.0, self.radius)
        if self.convention.clip:
            return torch.clamp(action, self.low, self.high)
        return action.clone()
