"""The loss of flow matching: how far velocities are from those that lead to given actions."""

from __future__ import annotations

from torch import Tensor

from rlinf.models.embodiment.flow.chain import FlowNetwork

_FIRST_TIME = 1e-3
"""No time is nearer to 0: there, a velocity has nothing left to say."""


def drawn_times(uniform: Tensor, alpha: float) -> Tensor:
    """Return times drawn from Beta(alpha, 1), by the inverse of its distribution function.

    Args:
        uniform: Drawn from 0 to 1, `[n]`.
        alpha: 1 is uniform; the larger it is, the more of the times are near the noise.
    """
    return uniform.pow(1.0 / alpha) * (1.0 - _FIRST_TIME) + _FIRST_TIME


def matching_losses(network: FlowNetwork, actions: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """Return `(v(x_t, t) - (z - a))^2` with `x_t = t z + (1 - t) a`, `[n, ...]` float32.

    Args:
        network: Of the velocity.
        actions: a, in the units of the flow, `[n, ...]`.
        noise: z, standard normal, `[n, ...]`.
        time: t, `[n]`.
    """
    t = time.view(-1, *[1] * (actions.dim() - 1))
    velocity, _ = network(t * noise + (1.0 - t) * actions, time)
    return (velocity.float() - (noise - actions)).square()
