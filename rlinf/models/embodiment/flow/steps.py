"""One denoising step of a flow: the Gaussian of where it leads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FLOW_ODE, FLOW_SDE, FLOW_CPS = "flow_ode", "flow_sde", "flow_cps"
FLOW_NOISE, REINFLOW = "flow_noise", "reinflow"
LEARNED = (FLOW_NOISE, REINFLOW)
"""Methods whose deviation a network computes."""


@dataclass(frozen=True)
class FlowSettings:
    """How a flow is integrated; the config keys of the same names.

    Attributes:
        num_steps: N, denoising steps.
        noise_method: Where the noise of a step comes from.
        noise_level: How much noise `flow_sde` and `flow_cps` add.
        joint_logprob: All steps have noise, and log-probabilities are means over them; else one
            step of each sample has.
    """

    num_steps: int = 4
    noise_method: str = FLOW_SDE
    noise_level: float = 0.5
    joint_logprob: bool = False

    def __post_init__(self) -> None:
        """Check the settings against each other."""
        if self.noise_method == REINFLOW and not self.joint_logprob:
            raise ValueError(
                "noise_method reinflow has noise in every step: set joint_logprob to true, or use "
                "flow_noise"
            )
        if self.noise_method == FLOW_CPS and self.num_steps < 2:
            raise ValueError(
                "noise_method flow_cps has no noise in its last step: num_steps must be at least 2"
            )

    @property
    def noisy_steps(self) -> int:
        """Steps that may have noise, from the first on; with `flow_cps` the last has none."""
        if self.noise_method == FLOW_ODE:
            return 0
        return self.num_steps - (self.noise_method == FLOW_CPS)

    @property
    def drawn_steps(self) -> int:
        """Steps of a chain for which noise is drawn."""
        return self.noisy_steps if self.joint_logprob else min(1, self.noisy_steps)


def time_grid(num_steps: int, device: torch.device | None = None) -> Tensor:
    """Return the times between steps, from 1 to 0, `[N + 1]` float32."""
    return 1.0 - torch.arange(num_steps + 1, device=device) / num_steps


def ode_step(x: Tensor, velocity: Tensor, size: float) -> Tensor:
    """Return where a step without noise leads: `x - size * velocity`."""
    return torch.add(x, velocity, alpha=-size)


def noisy_step(
    settings: FlowSettings,
    x: Tensor,
    velocity: Tensor,
    time: Tensor,
    learned_std: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of where a step with noise leads.

    With the velocity `v` and a step of size `d = 1 / N` from time `t`, the action is expected at
    `a = x - t v` and the noise at `z = x + (1 - t) v`. Means are `(1 - t + d) a + w z`:

        flow_sde              w = t - d - sigma^2 d / (2 t)   std = sigma sqrt(d)
                              sigma = noise_level sqrt(t / (1 - t)), with t - d for t in 1 - t at
                              the first step
        flow_cps              w = (t - d) cos(pi noise_level / 2)
                              std = (t - d) sin(pi noise_level / 2)
        flow_noise, reinflow  w = t - d                       std is learned

    Args:
        settings: How to integrate.
        x: Where the step begins, `[n, ...]`.
        velocity: What the network says there, `[n, ...]`.
        time: When it begins, of `time_grid`, `[n]`.
        learned_std: Of the methods that learn it, `[n, ...]`.

    Returns:
        Two tensors `[n, ...]`.
    """
    size, level = 1.0 / settings.num_steps, settings.noise_level
    if settings.noise_method in LEARNED:
        return ode_step(x, velocity, size), learned_std
    t = time.view(-1, *[1] * (x.dim() - 1))
    action, noise = x - t * velocity, x + (1.0 - t) * velocity
    left = (t - size).clamp_min(0.0)
    if settings.noise_method == FLOW_CPS:
        angle = math.pi * level / 2.0
        weight, std = left * math.cos(angle), left * math.sin(angle)
    elif settings.noise_method == FLOW_SDE:
        # A step from time 1 would have infinite noise.
        variance = level**2 * t / torch.where(t >= 1.0, size, 1.0 - t)
        weight, std = left - variance * size / (2.0 * t), (variance * size).sqrt()
    else:
        raise ValueError(f"noise_method {settings.noise_method} has no steps with noise")
    return (1.0 - left) * action + weight * noise, std.expand_as(x)
