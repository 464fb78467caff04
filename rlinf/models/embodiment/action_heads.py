"""From what a network computes to a distribution, and from its samples to actions of the env."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.models.embodiment.base_policy import ActionRange
from rlinf.models.embodiment.distributions import (
    Categorical,
    Distribution,
    Gaussian,
    SquashedGaussian,
    choose_distribution,
)
from rlinf.utils.precise_buffers import PreciseBuffers

if TYPE_CHECKING:
    from rlinf.models.embodiment.head_settings import HeadSettings
    from rlinf.utils.env_spec import EnvSpec

_NEARLY_ONE = 1.0 - 1e-6
_MOST_SQUASHED = 0.999
"""Where actions count as the bounds that tanh does not reach."""
_NO_CHOICE = -1e9
"""Logit of a choice that does not exist: its probability is 0, and all gradients are finite."""


class ActionHead(PreciseBuffers, ABC):
    """Makes distributions, and actions of the env; has no weights of its own.

    What a distribution gives is `[n, C*A]`; the env gets `[n, C, A]` in its own units. Buffers are
    not part of the saved state: they belong to the env.

    Attributes:
        action_range: What the actions for the env are.
        outputs: Numbers that the network computes for a chunk of actions.
        low: Smallest action, `[A]`.
    """

    action_range: ActionRange
    outputs: int
    low: Tensor
    learns_deviation: bool = False
    """Whether a distribution needs `log_std`, or outputs that stand for it."""

    @abstractmethod
    def distribution(
        self, outputs: Tensor, log_std: Tensor | None, scaled: bool = False
    ) -> Distribution:
        """Return the distribution of a chunk of actions.

        Args:
            outputs: What the network computed, `[n, outputs]` float32.
            log_std: Log of the deviation, `[C*A]`; None if there is none or the network has it.
            scaled: Densities are those of actions from -1 to 1, and not in the units of the env.
        """

    @abstractmethod
    def to_env(self, action: Tensor) -> Tensor:
        """Return actions in the units of the env, `[n, C, A]`, in memory of their own.

        Args:
            action: What the distribution gave, `[n, C*A]`.
        """

    @abstractmethod
    def scaled(self, actions: Tensor) -> Tensor:
        """Return actions of the env as a Q-function takes them, `[n, C*A]`.

        Args:
            actions: In the units of the env, `[n, C, A]`.

        Returns:
            Float32, from -1 to 1 where the range is known; of choices, indices from 0, int64.
        """

    @abstractmethod
    def uniform(self, noise: Tensor) -> Tensor:
        """Return actions drawn uniformly from the range, as the distribution would give them.

        Args:
            noise: Standard normal, `[n, C*A]`.

        Raises:
            ValueError: The range is not known.
        """

    @abstractmethod
    def from_env(self, actions: Tensor) -> Tensor:
        """Return what the distribution would have given for actions of the env, `[n, C*A]`.

        Args:
            actions: In the units of the env, `[n, C, A]`.
        """

    @abstractmethod
    def errors(self, own: Tensor, given: Tensor) -> Tensor:
        """Return how far actions are from given ones, `[n, C*A]` float32.

        Real numbers differ in parts of half the env's range, with a gradient. Choices differ by 1
        or not at all, without one.

        Args:
            own: What the distribution gave, `[n, C*A]`.
            given: What `from_env` returned, `[n, C*A]`.
        """


class GaussianHead(ActionHead):
    """Real numbers: clipped to the env's range, squashed into it by tanh, or as they are.

    Attributes:
        low: Smallest action, `[A]` float32.
        high: Largest action, `[A]` float32.
    """

    high: Tensor
    radius: Tensor
    log_radius: Tensor
    learns_deviation = True

    def __init__(
        self,
        action_dim: int,
        settings: HeadSettings,
        low: Sequence[float] | None,
        high: Sequence[float] | None,
        squash: bool,
    ) -> None:
        """Keep the bounds.

        Args:
            action_dim: A, numbers in one action.
            settings: See `HeadSettings`.
            low: Smallest action; None is unknown.
            high: Largest action; None is unknown.
            squash: Bring actions into the range by tanh, which must be finite.

        Raises:
            ValueError: There are not `action_dim` bounds.
        """
        super().__init__()
        known = low is not None and high is not None
        for name, bounds in (("low", low), ("high", high)):
            if known and len(bounds) != action_dim:
                raise ValueError(f"action_{name} has {len(bounds)} numbers, not {action_dim}")
        lows = torch.tensor(low if known else [-math.inf] * action_dim, dtype=torch.float32)
        highs = torch.tensor(high if known else [math.inf] * action_dim, dtype=torch.float32)
        radius = (highs - lows) / 2
        # Plain numbers are asked, not tensors: those of a model on the meta device have no values.
        bounded = known and any(map(math.isfinite, [*low, *high]))
        self._bounded = known and all(map(math.isfinite, [*low, *high]))
        self.action_range = ActionRange(
            tuple(low) if known else None,
            tuple(high) if known else None,
            clip=settings.clip_actions and bounded and not squash,
            squash=squash,
        )
        for name, value in (("low", lows), ("high", highs), ("radius", radius)):
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("log_radius", radius.log(), persistent=False)
        self._chunks, self._action_dim = settings.num_action_chunks, action_dim
        self._log_std_range = settings.log_std_min, settings.log_std_max
        width = self._chunks * action_dim
        self.outputs = 2 * width if settings.state_dependent_std else width

    def distribution(
        self, outputs: Tensor, log_std: Tensor | None, scaled: bool = False
    ) -> Distribution:
        """See `ActionHead.distribution`: a Gaussian; outputs are means, then log deviations."""
        mean = outputs
        if log_std is None:
            mean, log_std = outputs.chunk(2, dim=-1)
        log_std = log_std.float().clamp(*self._log_std_range)
        if self.action_range.squash:
            scale = 0.0 if scaled else self.log_radius.repeat(self._chunks)
            return SquashedGaussian(mean, log_std, scale)
        return Gaussian(mean, log_std)

    def to_env(self, action: Tensor) -> Tensor:
        """See `ActionHead.to_env`."""
        action = action.view(-1, self._chunks, self._action_dim)
        if self.action_range.squash:
            return torch.addcmul(self.low, action.tanh() + 1.0, self.radius)
        if self.action_range.clip:
            return torch.clamp(action, self.low, self.high)
        return action.clone()

    def scaled(self, actions: Tensor) -> Tensor:
        """See `ActionHead.scaled`."""
        if self._bounded:
            actions = (actions - self.low) / self.radius - 1.0
        return actions.flatten(1)

    def from_scaled(self, scaled: Tensor) -> Tensor:
        """Return actions of the env, `[n, H, A]`, for what `scaled` returned; see `to_env`.

        Args:
            scaled: From -1 to 1 where the range is known, `[n, H*A]` for any number H of actions.
        """
        actions = scaled.unflatten(-1, (-1, self._action_dim))
        if self._bounded:
            actions = torch.addcmul(self.low, actions + 1.0, self.radius)
        if self.action_range.clip:
            return torch.clamp(actions, self.low, self.high)
        return actions.clone()

    def uniform(self, noise: Tensor) -> Tensor:
        """See `ActionHead.uniform`."""
        if not self._bounded:
            raise ValueError(
                "actions cannot be drawn uniformly: the env says no finite range of them; set "
                "algorithm.random_steps to 0"
            )
        share = torch.special.ndtr(noise).unflatten(-1, (-1, self._action_dim))
        if self.action_range.squash:
            # Where tanh is 1 in float32, u would be infinite.
            return (2.0 * share - 1.0).clamp(-_NEARLY_ONE, _NEARLY_ONE).atanh().flatten(1)
        return torch.addcmul(self.low, share, 2.0 * self.radius).flatten(1)

    def from_env(self, actions: Tensor) -> Tensor:
        """See `ActionHead.from_env`; what tanh cannot reach is brought to where it is near."""
        actions = actions.float()
        if self.action_range.squash:
            actions = ((actions - self.low) / self.radius - 1.0).clamp(
                -_MOST_SQUASHED, _MOST_SQUASHED
            )
            actions = torch.atanh(actions)
        return actions.flatten(1)

    def errors(self, own: Tensor, given: Tensor) -> Tensor:
        """See `ActionHead.errors`.

        A given action at a bound stands for all beyond it, which the env cannot tell apart: an own
        action that is beyond that bound is no error.
        """
        if self.action_range.squash:
            return own.tanh() - given.tanh()
        low, high = (bound.repeat(self._chunks) for bound in (self.low, self.high))
        radius = self.radius.repeat(self._chunks)
        scaled = (own - given) / torch.where(radius.isfinite(), radius, 1.0)
        if not self.action_range.clip:
            return scaled
        beyond = ((given >= high) & (own >= high)) | ((given <= low) & (own <= low))
        return scaled.masked_fill(beyond, 0.0)


class DeterministicHead(GaussianHead):
    """Real numbers, brought into the env's range by tanh; samples have noise added.

    A sample is `tanh(u) + exploration_noise * noise` in parts of half the range, and the env gets
    it clipped. Its density is that before clipping.
    """

    learns_deviation = False

    def __init__(
        self, action_dim: int, settings: HeadSettings, low: Sequence[float], high: Sequence[float]
    ) -> None:
        """Keep the bounds; see `GaussianHead`."""
        settings.refuse_keys_of_deviation()
        super().__init__(action_dim, settings, low, high, squash=False)
        self.action_range = replace(self.action_range, deterministic=True)
        self._log_noise = math.log(settings.exploration_noise)

    def distribution(
        self, outputs: Tensor, log_std: Tensor | None, scaled: bool = False
    ) -> Distribution:
        """See `ActionHead.distribution`: a Gaussian around what is done without noise."""
        low, radius = (bound.repeat(self._chunks) for bound in (self.low, self.radius))
        log_std = self.log_radius.repeat(self._chunks) + self._log_noise
        return Gaussian(torch.addcmul(low, outputs.tanh() + 1.0, radius), log_std)


class CategoricalHead(ActionHead):
    """Choices: the distribution gives indices from 0, the env gets whole numbers from `low`.

    Logits of a chunk are ordered by action, number of the action, choice.

    Attributes:
        low: Number of the first choice, `[A]` int64.
    """

    logit_index: Tensor

    def __init__(
        self, choices: Sequence[int], chunks: int, low: Sequence[float] | None = None
    ) -> None:
        """Keep which logits belong to which number.

        Args:
            choices: Number of choices for each number of an action, `[A]`.
            chunks: C, actions in a chunk.
            low: Number of the first choice, `[A]`; None is 0.
        """
        super().__init__()
        starts = [0] * len(choices) if low is None else [int(value) for value in low]
        ends = [start + count - 1 for start, count in zip(starts, choices, strict=True)]
        self.action_range = ActionRange(
            tuple(map(float, starts)), tuple(map(float, ends)), choices=tuple(choices)
        )
        self.outputs = chunks * sum(choices)
        self._shape = chunks, len(choices)
        self._most = max(choices)
        self._even = min(choices) == self._most
        # Where each logit is among those of one action; what does not exist is behind the last.
        begins = [0, *itertools.accumulate(choices)]
        index = [
            [begin + i if i < count else begins[-1] for i in range(self._most)]
            for begin, count in zip(begins, choices, strict=False)
        ]
        self.register_buffer("low", torch.tensor(starts), persistent=False)
        self.register_buffer("logit_index", torch.tensor(index), persistent=False)

    def distribution(
        self, outputs: Tensor, log_std: Tensor | None, scaled: bool = False
    ) -> Distribution:
        """See `ActionHead.distribution`: one categorical for each number of the actions."""
        if not self._even:
            rows = outputs.unflatten(-1, (self._shape[0], -1))
            outputs = functional.pad(rows, (0, 1), value=_NO_CHOICE)[..., self.logit_index]
        return Categorical(outputs.reshape(len(outputs), -1, self._most))

    def to_env(self, action: Tensor) -> Tensor:
        """See `ActionHead.to_env`."""
        return action.view(-1, *self._shape) + self.low

    def scaled(self, actions: Tensor) -> Tensor:
        """See `ActionHead.scaled`."""
        return (actions.long() - self.low).flatten(1)

    def uniform(self, noise: Tensor) -> Tensor:
        """See `ActionHead.uniform`."""
        count = torch.tensor(self.action_range.choices, device=noise.device).repeat(self._shape[0])
        return (torch.special.ndtr(noise) * count).long().minimum(count - 1)

    def from_env(self, actions: Tensor) -> Tensor:
        """See `ActionHead.from_env`."""
        return (actions.long() - self.low).flatten(1)

    def errors(self, own: Tensor, given: Tensor) -> Tensor:
        """See `ActionHead.errors`."""
        return (own != given).float()


def make_action_head(
    action_dim: int, settings: HeadSettings, env_spec: EnvSpec | None
) -> ActionHead:
    """Make the head that settings and env ask for.

    Args:
        action_dim: A, numbers in one action.
        settings: See `HeadSettings`.
        env_spec: Says the range of actions or the number of choices; None is unknown.

    Raises:
        ValueError: The distribution does not fit the actions of the env.
    """
    low, high, choices = (
        getattr(env_spec, name, None) for name in ("action_low", "action_high", "action_choices")
    )
    choices = settings.action_choices or choices
    name = choose_distribution(settings.distribution, choices, low, high)
    if name == "deterministic":
        return DeterministicHead(action_dim, settings, low, high)
    if choices is None:
        return GaussianHead(action_dim, settings, low, high, squash=name == "squashed_gaussian")
    if len(choices) != action_dim:
        raise ValueError(f"action_choices has {len(choices)} numbers, not {action_dim}")
    settings.refuse_keys_of_real_numbers()
    return CategoricalHead(choices, settings.num_action_chunks, low)
