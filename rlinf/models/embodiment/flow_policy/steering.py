"""DSRL (Wagenmaker et al., 2025): a small actor chooses the noise that a frozen flow begins with.

The noise `w` of one action, `A` numbers from `-b` to `b`, begins every action of a plan. What the
env gets is where the ODE of the flow leads from there. To the learner, `w` is the action: SAC has
an actor and Q-functions of it, and the flow is part of the env.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlinf.models.embodiment.base_policy import ForwardType, Mode
from rlinf.models.embodiment.cnn_policy.cnn_policy import CNNPolicy
from rlinf.models.embodiment.distributions import SquashedGaussian
from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow_policy.flow_policy import FlowActor
from rlinf.models.embodiment.layers import MLP, POLICY_GAIN
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy
from rlinf.models.embodiment.q_heads import QEnsemble

_LOG_STD_RANGE = -5.0, 2.0
_NEARLY_ONE = 1.0 - 1e-6
_TRAINED = ("steering.", "q_head.")


class SteeredFlow(FlowActor):
    """A flow whose weights stay as they are, and an actor that chooses its noise.

    Attributes:
        steering: Actor: mean and log deviation of `u`, where `w = b tanh(u)`.
        q_head: Q-functions of features and `w / b`; None for whoever only acts.
    """

    forward_types: ClassVar[tuple[ForwardType, ...]] = (
        ForwardType.DEFAULT,
        ForwardType.SAC,
        ForwardType.SAC_Q,
    )
    critic_modules: ClassVar[tuple[str, ...]] = ("q_head",)
    _no_split_modules: ClassVar[list[str]] = ["ConvEncoder", "MLP", "QEnsemble"]

    def _make_heads(self, feature_dim: int) -> None:
        """Make the flow, the actor and the Q-functions."""
        super()._make_heads(feature_dim)
        own = self.settings
        hidden = tuple(own.steering_hidden_sizes)
        width = self.action_dim
        self.steering = MLP(feature_dim, hidden, 2 * width, own.activation, POLICY_GAIN)
        if own.add_q_head:
            self.q_head = QEnsemble(feature_dim + width, hidden, own.num_q_heads, act="relu")

    def freeze_flow(self) -> None:
        """Let nothing be trained but the actor and the Q-functions."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith(_TRAINED))

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
        features = self.features(forward_inputs)
        drawn = self._noise_of(features)
        u = forward_inputs["action"][:, : self.action_dim]
        return {
            "logprobs": self._of_first_action(drawn.log_prob(u)) if compute_logprobs else None,
            "entropy": self._of_first_action(drawn.entropy()) if compute_entropy else None,
            "values": self._values(features) if compute_values else None,
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
        inputs = self.policy_inputs(env_obs, augment=False)
        features = self.features(inputs)
        drawn = self._noise_of(features)
        if noise is None and mode != "eval":
            noise = self._draw(len(features), self.action_dim)
        if mode == "eval":
            u = drawn.mode()
        elif mode == "random":
            share = 2.0 * torch.special.ndtr(noise) - 1.0
            u = share.clamp(-_NEARLY_ONE, _NEARLY_ONE).atanh()
        else:
            u = drawn.sample(noise)
        start = self._bounded(u).repeat(1, self.action_horizon)
        plan = sample_chain(self._network(features), self.flow, start).states[:, -1]
        planned = self.action_head.from_scaled(plan)
        inputs["action"] = u.repeat(1, self.num_action_chunks)
        result = {
            "prev_logprobs": self._of_first_action(drawn.log_prob(u)),
            "prev_values": self._values(features),
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
        drawn = self._noise_of(self.features(forward_inputs))
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
        features = self.features(forward_inputs)
        chosen = (actions[:, 0] / self.settings.noise_bound).to(features.dtype)
        return self.q_head(torch.cat([features, chosen], 1), frozen)

    @staticmethod
    def is_steering_parameter(name: str) -> bool:
        """Return whether a weight belongs to the actor, which the policy of the flow lacks.

        Args:
            name: As in `named_parameters`.
        """
        return name.startswith("steering.")

    def _noise_of(self, features: Tensor) -> SquashedGaussian:
        mean, log_std = self.steering(features).float().chunk(2, dim=-1)
        return SquashedGaussian(mean, log_std.clamp(*_LOG_STD_RANGE), 0.0)

    def _bounded(self, u: Tensor) -> Tensor:
        return self.settings.noise_bound * u.tanh()

    def _of_first_action(self, numbers: Tensor) -> Tensor:
        """Return numbers `[n, A]` as those of a chunk, `[n, C*A]`; the others are 0."""
        rest = (self.num_action_chunks - 1) * self.action_dim
        return torch.nn.functional.pad(numbers, (0, rest))


class SteeredStateFlowPolicy(SteeredFlow, MLPPolicy):
    """Acts on `states` [B, S]."""


class SteeredImageFlowPolicy(SteeredFlow, CNNPolicy):
    """Acts on images [B, H, W, C] uint8 and, if there are any, `states` [B, S]."""
