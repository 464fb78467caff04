"""DSRL (Wagenmaker et al., 2025): a small actor chooses the noise that a frozen flow begins with.

The noise `w` of one action, `A` numbers from `-b` to `b`, begins every action of a plan. What the
env gets is where the ODE of the flow leads from there. To the learner, `w` is the action: SAC has
an actor and Q-functions of it, and the flow is part of the env.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rlinf.models.embodiment.base_policy import BasePolicy, ForwardType, Mode
from rlinf.models.embodiment.distributions import SquashedGaussian
from rlinf.models.embodiment.layers import MLP, POLICY_GAIN
from rlinf.models.embodiment.q_heads import QEnsemble

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LOG_STD_RANGE = -5.0, 2.0
_NEARLY_ONE = 1.0 - 1e-6


@dataclass(frozen=True)
class SteeringSettings:
    """An actor of noise.

    Attributes:
        noise_bound: b, the greatest noise.
        hidden_sizes: Units of each hidden layer of the actor, and of its Q-functions.
        num_q_heads: Q-functions; 0 for whoever only acts.
        activation: Function between layers of the actor.
    """

    noise_bound: float = 1.5
    hidden_sizes: Sequence[int] = (128, 128, 128)
    num_q_heads: int = 10
    activation: str = "silu"

    @classmethod
    def of(cls, cfg: DictConfig, activation: str = "silu") -> SteeringSettings | None:
        """Read the settings from a model section; None if it has no such actor.

        Raises:
            ValueError: Keys do not fit one another.
        """
        if not cfg.use_dsrl:
            if cfg.add_q_head:
                raise ValueError(
                    f"{cfg.model_type} has Q-functions of its noise alone: set "
                    "actor.model.use_dsrl to true, or add_q_head to false"
                )
            return None
        if cfg.add_value_head or cfg.rtc is not None:
            raise ValueError(
                "use_dsrl trains an actor of the noise by Q-functions, and makes each plan anew: "
                "set actor.model.add_value_head to false, and leave out rtc"
            )
        heads = cfg.num_q_heads if cfg.add_q_head else 0
        return cls(cfg.noise_bound, tuple(cfg.steering_hidden_sizes), heads, activation)


class NoiseSteering(BasePolicy):
    """Mixin of a policy whose flow stays as it is, and an actor that chooses its noise.

    Attributes:
        steering: Actor: mean and log deviation of `u`, where `w = b tanh(u)`.
        q_head: Q-functions of features and `w / b`; None for whoever only acts.
        value_dim: Numbers that others of its kind have as values of an observation.
    """

    forward_types: ClassVar[tuple[ForwardType, ...]] = (
        ForwardType.DEFAULT,
        ForwardType.SAC,
        ForwardType.SAC_Q,
    )
    critic_modules: ClassVar[tuple[str, ...]] = ("q_head",)
    steering_modules: ClassVar[tuple[str, ...]] = ("steering",)
    """Modules that only this policy has, besides the Q-functions."""

    value_dim: int

    @abstractmethod
    def steering_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what of the observations is needed to recompute, on the policy's device."""

    @abstractmethod
    def steering_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return what actor and Q-functions see, `[n, F]`."""

    @abstractmethod
    def steered_plans(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """Return plans `[n, H, A]`, in the units of the env.

        Args:
            inputs: As `steering_inputs` returns them.
            noise: With which each action begins, `[n, A]`.
        """

    def make_steering(self, feature_dim: int, settings: SteeringSettings) -> None:
        """Make actor and Q-functions.

        Args:
            feature_dim: F, numbers in the features.
            settings: See `SteeringSettings`.
        """
        hidden, width = tuple(settings.hidden_sizes), self.action_dim
        self._noise_bound, self.q_head = settings.noise_bound, None
        self.steering = MLP(feature_dim, hidden, 2 * width, settings.activation, POLICY_GAIN)
        if settings.num_q_heads:
            self.q_head = QEnsemble(feature_dim + width, hidden, settings.num_q_heads, act="relu")

    def freeze_flow(self) -> None:
        """Let nothing be trained but the actor and the Q-functions."""
        for name, parameter in self.named_parameters():
            trained = self.is_steering_parameter(name) or self.is_q_parameter(name)
            parameter.requires_grad_(trained)

    @property
    def num_q_heads(self) -> int:
        """See `BasePolicy.num_q_heads`."""
        return 0 if self.q_head is None else self.q_head.heads

    @property
    def noise_width(self) -> int:
        """See `BasePolicy.noise_width`."""
        return self.action_dim

    @property
    def sac_width(self) -> int:
        """See `BasePolicy.sac_width`: the noise of one action."""
        return self.action_dim

    @property
    def draws_within_bounds(self) -> bool:
        """See `BasePolicy.draws_within_bounds`."""
        return True

    def default_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        compute_logprobs: bool = True,
        compute_entropy: bool = False,
        compute_values: bool = False,
    ) -> dict[str, Tensor | None]:
        """See `BasePolicy.default_forward`: of `w / b`, in the numbers of the first action."""
        drawn = self._noise_of(self.steering_features(forward_inputs))
        u = forward_inputs["action"][:, : self.action_dim]
        return {
            "logprobs": self._of_first_action(drawn.log_prob(u)) if compute_logprobs else None,
            "entropy": self._of_first_action(drawn.entropy()) if compute_entropy else None,
            "values": self._no_values(len(u)) if compute_values else None,
        }

    @torch.no_grad()
    def predict_action_batch(
        self,
        env_obs: Mapping[str, Any],
        mode: Mode = "train",
        noise: Tensor | None = None,
        **sampling: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """See `BasePolicy.predict_action_batch`.

        Args:
            env_obs: Observations.
            mode: `train` draws the noise of the flow; `eval` takes the mode of u; `random` draws it
                uniformly between its bounds.
            noise: Standard normal, [B, A]; None draws it from the policy's generator.
            **sampling: None are known.

        Returns:
            Actions, and what is needed to train on them; `action` is u, repeated for each action.
        """
        self._check_call(mode, sampling)
        inputs = self.steering_inputs(env_obs)
        drawn = self._noise_of(self.steering_features(inputs))
        u = drawn.mode()
        if mode != "eval":
            if noise is None:
                noise = torch.randn(u.shape, generator=self.generator, device=u.device)
            share = 2.0 * torch.special.ndtr(noise) - 1.0
            uniform = share.clamp(-_NEARLY_ONE, _NEARLY_ONE).atanh()
            u = uniform if mode == "random" else drawn.sample(noise)
        planned = self.steered_plans(inputs, self._bounded(u))
        inputs["action"] = u.repeat(1, self.num_action_chunks)
        result = {
            "prev_logprobs": self._of_first_action(drawn.log_prob(u)),
            "prev_values": self._no_values(len(u)),
            "forward_inputs": inputs,
        }
        return planned[:, : self.num_action_chunks].contiguous(), result

    def replay_actions(self, actions: Tensor, forward_inputs: Mapping[str, Tensor]) -> Tensor:
        """See `BasePolicy.replay_actions`: w, repeated for each action."""
        return self._bounded(forward_inputs["action"]).view_as(actions)

    def sac_forward(
        self, forward_inputs: Mapping[str, Tensor], noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """See `BasePolicy.sac_forward`: `actions` `[n, 1, A]` are w, densities those of w / b."""
        with torch.no_grad():
            features = self.steering_features(forward_inputs)
        drawn = self._noise_of(features)
        if noise is None:
            return {"actions": self._bounded(drawn.mode())[:, None]}
        u, density = drawn.rsample_with_log_prob(noise)
        return {"actions": self._bounded(u)[:, None], "logprobs": density.sum(-1)}

    def sac_q_forward(
        self,
        forward_inputs: Mapping[str, Tensor],
        actions: Tensor | None = None,
        frozen: bool = False,
    ) -> Tensor:
        """See `BasePolicy.sac_q_forward`: of w, that of the first action."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            features = self.steering_features(forward_inputs)
        chosen = (actions[:, 0] / self._noise_bound).to(features.dtype)
        return self.q_head(torch.cat([features, chosen], 1), frozen)

    @classmethod
    def is_steering_parameter(cls, name: str) -> bool:
        """Return whether a weight belongs to the actor, which the policy of the flow lacks.

        Args:
            name: As in `named_parameters`.
        """
        return name.startswith(tuple(f"{path}." for path in cls.steering_modules))

    def _noise_of(self, features: Tensor) -> SquashedGaussian:
        mean, log_std = self.steering(features).float().chunk(2, dim=-1)
        return SquashedGaussian(mean, log_std.clamp(*_LOG_STD_RANGE), 0.0)

    def _bounded(self, u: Tensor) -> Tensor:
        return self._noise_bound * u.tanh()

    def _of_first_action(self, numbers: Tensor) -> Tensor:
        """Return numbers `[n, A]` as those of a chunk, `[n, C*A]`; the others are 0."""
        rest = (self.num_action_chunks - 1) * self.action_dim
        return torch.nn.functional.pad(numbers, (0, rest))

    def _no_values(self, count: int) -> Tensor:
        return torch.zeros(count, self.value_dim, device=self.device)
