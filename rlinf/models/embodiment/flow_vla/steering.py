"""Policies with an action expert that stay as they are, and an actor of their noise.

The actor does not wait for the whole model: it sees small pictures through encoders of its own, the
state, and the mean of the embeddings of the instruction's tokens. So a batch of the replay buffer
costs no pass of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.embodiment.cnn_policy.encoder import ConvEncoder
from rlinf.models.embodiment.cnn_policy.images import scaled
from rlinf.models.embodiment.flow.chain import sample_chain
from rlinf.models.embodiment.flow.steering import NoiseSteering, SteeringSettings
from rlinf.models.embodiment.flow_vla.policy import FlowVLAPolicy

_COLOURS = 3
_CHANNELS = 32, 64, 64
_FEATURES = 64
"""Numbers that describe a picture."""


class SteeredVLA(NoiseSteering, FlowVLAPolicy):
    """Chooses the noise of the numbers that the env takes; that of padding is zero.

    Attributes:
        steering_encoders: One per camera; they learn with the Q-functions.
    """

    critic_modules: ClassVar[tuple[str, ...]] = ("q_head", "steering_encoders")
    steering_modules: ClassVar[tuple[str, ...]] = ("steering", "steering_encoders")

    def add_steering(self, settings: SteeringSettings, image_size: int) -> None:
        """Make the actor, the Q-functions and their encoders.

        Args:
            settings: See `SteeringSettings`.
            image_size: Height and width of pictures as they see them.
        """
        self._small = image_size
        cameras = self.settings.num_images_in_input
        self.steering_encoders = nn.ModuleList(
            ConvEncoder(_COLOURS, _CHANNELS, image_size, _FEATURES, settings.activation)
            for _ in range(cameras)
        )
        embedding = self.network.get_parameter(self.network.token_embedding)
        self.make_steering(cameras * _FEATURES + self.obs_dim + embedding.shape[1], settings)

    def policy_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """See `FlowVLAPolicy.policy_inputs`; with the instruction's own tokens."""
        inputs = super().policy_inputs(env_obs)
        words = self.prompts.words(env_obs["task_descriptions"])
        return inputs | {"instruction_ids": words.to(self.device)}

    def steering_inputs(self, env_obs: Mapping[str, Any]) -> dict[str, Tensor]:
        """See `NoiseSteering.steering_inputs`."""
        return self.policy_inputs(env_obs)

    def steering_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """See `NoiseSteering.steering_features`: pictures, state and instruction."""
        parts = []
        for number, encoder in enumerate(self.steering_encoders):
            parts.append(encoder(scaled(inputs[f"view_{number}"][:, None], self._small)[:, 0]))
        ids = inputs["instruction_ids"]
        read = (ids != self.prompts.pad).unsqueeze(-1)
        embedding = self.network.get_parameter(self.network.token_embedding).detach()
        words = functional.embedding(ids, embedding) * read
        kind = self.steering.head.weight.dtype
        parts += [self._normalized(inputs["states"]), words.sum(1) / read.sum(1).clamp(min=1)]
        return torch.cat([part.to(kind) for part in parts], 1)

    def steered_plans(self, inputs: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """See `NoiseSteering.steered_plans`."""
        start = functional.pad(noise, (0, self.network.action_dim - self.action_dim))
        network = self._network(self.prefix(inputs))
        chain = sample_chain(network, self.flow, start.repeat(1, self.action_horizon))
        return self._to_env(self._unpadded(chain.states[:, -1]))

    @torch.no_grad()
    def predict_values(self, env_obs: Mapping[str, Any]) -> Tensor:
        """See `BasePolicy.predict_values`: there are none, and the model is not run."""
        return self._no_values(len(env_obs["states"]))
