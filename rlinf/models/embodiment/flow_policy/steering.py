"""The small flow policies with an actor of their noise; see `rlinf.models.embodiment.flow`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from rlinf.models.embodiment.cnn_policy.cnn_policy import CNNPolicy
from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow.steering import NoiseSteering
from rlinf.models.embodiment.flow_policy.flow_policy import FlowActor
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy


class SteeredFlow(NoiseSteering, FlowActor):
    """Actor and Q-functions see the features of the flow, which are frozen, too."""

    _no_split_modules: ClassVar[list[str]] = ["ConvEncoder", "MLP", "QEnsemble"]

    def _make_heads(self, feature_dim: int) -> None:
        """Make the flow, the actor and the Q-functions."""
        super()._make_heads(feature_dim)
        self.make_steering(feature_dim, self.settings.steering)

    def steering_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """See `NoiseSteering.steering_inputs`."""
        return self.policy_inputs(env_obs, augment=False)

    def steering_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See `NoiseSteering.steering_features`."""
        return self.features(inputs)

    def steered_plans(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """See `NoiseSteering.steered_plans`."""
        start = noise.repeat(1, self.action_horizon)
        chain = sample_chain(self._network(self.features(inputs)), self.flow, start)
        return self.action_head.from_scaled(chain.states[:, -1])


class SteeredStateFlowPolicy(SteeredFlow, MLPPolicy):
    """Acts on `states` [B, S]."""


class SteeredImageFlowPolicy(SteeredFlow, CNNPolicy):
    """Acts on images [B, H, W, C] uint8 and, if there are any, `states` [B, S]."""
