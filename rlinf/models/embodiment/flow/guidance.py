"""Real-time chunking (Black et al., 2025): a new plan goes on where the last one still counts.

While a policy plans, the robot carries out actions of its last plan. The new plan is guided, in
each denoising step, towards what the last one has for the same times: strongly where actions are
certain to be carried out, less and less behind that.

H actions are planned, s of them are carried out before the next plan, and the first d of a plan
are already decided when it is made.

Rollouts to learn from are told from the side of the plans: a plan is made from what is seen d
actions before its own begin, and its chunk is those s of its actions that are carried out because
of it, number d to d + s - 1. So each reward, value and log-probability is that of its own action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.models.embodiment.flow.chain import FlowNetwork

ANEW, DELAYED = "anew", "delayed"

_SMALLEST_TIME = 1e-6


@dataclass(frozen=True)
class RealTimeChunking:
    """How plans are guided; the keys of `actor.model.rtc`.

    Attributes:
        delay: d, actions that are decided before a plan is made.
        max_guidance: Greatest weight of the guidance, beta; 0 is none.
        rollouts: What of it there is in rollouts to learn from.
    """

    delay: int = 1
    max_guidance: float = 5.0
    rollouts: str = ANEW

    @property
    def decided_in_rollouts(self) -> int:
        """Actions that are decided before a plan is made, in rollouts to learn from."""
        return 0 if self.rollouts == ANEW else self.delay

    def check(self, horizon: int, executed: int) -> None:
        """See to it that what is decided is part of two plans.

        Args:
            horizon: H.
            executed: s.

        Raises:
            ValueError: The plans are too short for the delay.
        """
        most = min(executed, horizon - executed)
        if self.delay > most or horizon == executed:
            raise ValueError(
                f"rtc.delay {self.delay} does not fit: of {horizon} actions that are planned "
                f"(action_horizon), {executed} are carried out (num_action_chunks), so that plans "
                f"share {horizon - executed}; the delay is at most {most} and plans share at least "
                "one action: raise action_horizon, or lower num_action_chunks or the delay"
            )

    def going_on(
        self, network: FlowNetwork, last: Tensor, executed: int, width: int
    ) -> FlowNetwork:
        """Return a network that leads to plans which agree with the last ones.

        Args:
            network: Of the velocity of plans, `[n, H*D]`.
            last: The last plans in the units of the flow, `[n, H, A]`; NaN where there is none.
            executed: s, how many of their actions are carried out.
            width: D, numbers in an action of the flow; those behind A are padding, which is free.
        """
        if not self.max_guidance:
            return network
        count, horizon, numbers = last.shape
        shared = horizon - executed
        target = torch.zeros(count, horizon, width, device=last.device)
        target[:, :shared, :numbers] = last[:, executed:].nan_to_num()
        known = ~last.isnan().flatten(1).any(1)
        weights = torch.zeros_like(target)
        weights[..., :numbers] = prefix_weights(horizon, executed, self.delay).to(last)[:, None]
        weights *= known[:, None, None]
        return guided(network, target.flatten(1), weights.flatten(1), self.max_guidance)

    def keep_decided(self, plans: Tensor, last: Tensor, executed: int) -> None:
        """Enter what the last plans had decided, bit for bit.

        Args:
            plans: New plans in the units of the env, `[n, H, A]`; changed in place.
            last: The last ones, likewise; NaN where there is none.
            executed: s, how many of their actions are carried out.
        """
        decided = last.to(plans)[:, executed : executed + self.delay]
        begin = plans[:, : self.delay]
        begin.copy_(torch.where(decided.isnan(), begin, decided))


def prefix_weights(horizon: int, executed: int, delay: int) -> Tensor:
    """Return how much each action of a plan is held to the last one, `[H]` float32.

    1 for the first d; 0 for the last s, which the last plan does not have; in between
    `c (e^c - 1) / (e - 1)` with `c = (H - s - i) / (H - s - d + 1)`.

    Args:
        horizon: H.
        executed: s.
        delay: d.
    """
    shared = horizon - executed
    index = torch.arange(horizon, dtype=torch.float32)
    share = ((shared - index) / (shared - delay + 1)).clamp(0.0, 1.0)
    decaying = share * torch.expm1(share) / math.expm1(1.0)
    return torch.where(index < delay, 1.0, decaying)


def guidance_scale(time: Tensor, limit: float) -> Tensor:
    """Return `min(limit, t / ((1 - t) r^2))` with `r^2 = t^2 / (t^2 + (1 - t)^2)`.

    Args:
        time: t, from 1 (noise) to 0 (action).
        limit: Greatest scale, which the first step has.
    """
    product = (time * (1.0 - time)).clamp_min(_SMALLEST_TIME)
    return ((time.square() + (1.0 - time).square()) / product).clamp_max(limit)


def guided(network: FlowNetwork, target: Tensor, weights: Tensor, limit: float) -> FlowNetwork:
    """Return a network whose velocities lead towards a target, without gradients of weights.

    With `a(x) = x - t v(x, t)`, the action that is expected from `x`, the velocity becomes
    `v - k (da/dx)^T (w (target - a))`, with k of `guidance_scale`.

    Args:
        network: Of the velocity.
        target: What actions are to be, `[n, D]`; finite.
        weights: w, how much that counts, `[n, D]`; where all of a row are 0, nothing changes.
        limit: See `guidance_scale`.
    """

    def steered(x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            velocity, std = network(x, time)
            expected = x - time[:, None] * velocity.float()
            error = weights * (target - expected.detach())
            (pull,) = torch.autograd.grad(expected, x, error)
        found = velocity.detach().float() - guidance_scale(time, limit)[:, None] * pull
        return found, None if std is None else std.detach()

    return steered
