"""Chains of denoising steps: sampling them, and the log-probability of a stored one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rlinf.models.embodiment.flow.steps import FlowSettings, noisy_step, ode_step, time_grid

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)

NO_STEP, ALL_STEPS = -1, -2
"""What stands for the number of a sample's step with noise if none has noise, or all have."""

FlowNetwork = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""From `x` `[n, ...]` and times `[n]` to velocities `[n, ...]`, and deviations if it learns them.

It knows the observations, and has computed once what depends on them alone.
"""


class Chain(NamedTuple):
    """Denoising of n samples.

    Attributes:
        states: From noise to action, `[n, N + 1, ...]` float32.
        noisy: Number of each sample's step with noise, `NO_STEP` or `ALL_STEPS`; int64 `[n]`.
        logprobs: Of each number of the action, `[n, ...]`; see `chain_log_probs`.
    """

    states: Tensor
    noisy: Tensor
    logprobs: Tensor


def noisy_step_numbers(settings: FlowSettings, uniform: Tensor) -> Tensor:
    """Return which step of each sample has noise, int64 `[n]`.

    Args:
        settings: How to integrate.
        uniform: Drawn from 0 to 1, `[n]`.
    """
    steps = settings.noisy_steps
    if steps == 0:
        return torch.full_like(uniform, NO_STEP, dtype=torch.long)
    if settings.joint_logprob:
        return torch.full_like(uniform, ALL_STEPS, dtype=torch.long)
    return (uniform * steps).long().clamp_(0, steps - 1)


def sample_chain(
    network: FlowNetwork,
    settings: FlowSettings,
    start: Tensor,
    noise: Tensor | None = None,
    noisy: Tensor | None = None,
) -> Chain:
    """Go from noise to actions, without gradients.

    Args:
        network: Of the velocity.
        settings: How to integrate.
        start: Where chains begin, `[n, ...]`.
        noise: Standard normal, `[n, S, ...]` with S of `FlowSettings.drawn_steps`; None adds none.
        noisy: Which steps have noise; see `noisy_step_numbers`. None is none of them.
    """
    count, steps = len(start), settings.num_steps
    if noise is None or noisy is None:
        noisy = torch.full((count,), NO_STEP, device=start.device)
    grid = time_grid(steps, start.device)
    x, states, total = start.float(), [start.float()], torch.zeros_like(start, dtype=torch.float32)
    with torch.no_grad():
        for step in range(steps):
            time = grid[step].expand(count)
            velocity, learned = _float(network(x, time))
            ahead = ode_step(x, velocity, 1.0 / steps)
            if noise is not None and step < settings.noisy_steps:
                mean, std = noisy_step(settings, x, velocity, time, learned)
                drawn = noise[:, step if settings.joint_logprob else 0]
                mask = _like((noisy == step) | (noisy == ALL_STEPS), x)
                ahead = torch.where(mask, mean + std * drawn, ahead)
                total += torch.where(mask, gaussian_log_prob(ahead, mean, std), 0.0)
            x = ahead
            states.append(x)
    if settings.joint_logprob:
        total = total / steps
    return Chain(torch.stack(states, 1), noisy, total)


def chain_log_probs(
    network: FlowNetwork,
    settings: FlowSettings,
    states: Tensor,
    noisy: Tensor,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the log-probabilities of stored chains, with gradients.

    That of a sample is the density of its one step with noise, given where that step begins. With
    `joint_logprob`, it is the mean over all steps. Steps without noise count as 0.

    Args:
        network: Of the velocity, for the observations of the samples.
        settings: How the chains were made.
        states: `[n, N + 1, ...]`, as in `Chain`.
        noisy: `[n]`, as in `Chain`.
        entropy: Return the entropy of these steps as well.

    Returns:
        Log-probabilities and entropy of each number of the action, each `[n, ...]` float32.
    """
    grid = time_grid(settings.num_steps, states.device)
    if not settings.joint_logprob:
        rows, number = torch.arange(len(states), device=states.device), noisy.clamp_min(0)
        mask = _like(noisy >= 0, states[:, 0])
        return _step_log_probs(
            network,
            settings,
            states[rows, number],
            states[rows, number + 1],
            grid[number],
            mask,
            entropy,
        )
    logprobs = entropies = torch.zeros_like(states[:, 0])
    mask = _like(noisy == ALL_STEPS, states[:, 0])
    for step in range(settings.noisy_steps):
        time = grid[step].expand(len(states))
        own, spread = _step_log_probs(
            network, settings, states[:, step], states[:, step + 1], time, mask, entropy
        )
        logprobs = logprobs + own
        entropies = entropies + spread if entropy else entropies
    steps = settings.num_steps
    return logprobs / steps, entropies / steps if entropy else None


def _step_log_probs(
    network: FlowNetwork,
    settings: FlowSettings,
    x: Tensor,
    ahead: Tensor,
    time: Tensor,
    mask: Tensor,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return density and entropy of one step of each sample; 0 where the mask is false."""
    if settings.noisy_steps == 0:
        zeros = torch.zeros_like(x)
        return zeros, zeros if entropy else None
    velocity, learned = _float(network(x, time))
    mean, std = noisy_step(settings, x, velocity, time, learned)
    logprobs = torch.where(mask, gaussian_log_prob(ahead, mean, std), 0.0)
    return logprobs, torch.where(mask, gaussian_entropy(std), 0.0) if entropy else None


def gaussian_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log-density of each number; 0 where the deviation is 0."""
    positive = std > 0
    safe = torch.where(positive, std, 1.0)
    density = -0.5 * ((x - mean) / safe).square() - safe.log() - _HALF_LOG_TWO_PI
    return torch.where(positive, density, 0.0)


def gaussian_entropy(std: Tensor) -> Tensor:
    """Return the entropy of each number; 0 where the deviation is 0."""
    positive = std > 0
    safe = torch.where(positive, std, 1.0)
    return torch.where(positive, safe.log() + 0.5 + _HALF_LOG_TWO_PI, 0.0)


def _like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (x.dim() - 1))


def _float(found: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    velocity, std = found
    return velocity.float(), None if std is None else std.float()
