"""Forward passes of the small policies for implicit Q-learning.

Encoders, where there are any, learn with the Q-functions; policy and value head take what they
give. So does the value head with a trunk that it shares with the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlinf.models.embodiment.action_heads import ActionHead


class IQLForwards:
    """Mixin of `ActorCriticPolicy`."""

    action_head: ActionHead
    value_head: nn.Module | None
    trunk: nn.Module | None

    def iql_actor_forward(
        self, forward_inputs: Mapping[str, Tensor], actions: Tensor
    ) -> dict[str, Tensor]:
        """See `BasePolicy.iql_actor_forward`."""
        with torch.no_grad():
            features = self.features(forward_inputs)
        if self.trunk is not None:
            features = self.trunk(features)
        return self._compare(self.distribution(features), actions)

    def iql_critic_forward(self, forward_inputs: Mapping[str, Tensor], actions: Tensor) -> Tensor:
        """See `BasePolicy.iql_critic_forward`."""
        if self.action_range.choices is None:
            return self.sac_q_forward(forward_inputs, actions)
        values = self.sac_q_forward(forward_inputs)
        index = self.action_head.scaled(actions)[None, :, :, None]
        return values.gather(-1, index.expand(len(values), -1, -1, 1)).sum((2, 3))

    def iql_value_forward(self, forward_inputs: Mapping[str, Tensor]) -> Tensor:
        """See `BasePolicy.iql_value_forward`."""
        with torch.no_grad():
            features = self._trunk(forward_inputs)
        # Not a view, which FSDP must not return.
        return self._values(features)[:, 0].clone()

    def _compare(self, own: Any, actions: Tensor) -> dict[str, Tensor]:
        """Return log-probabilities of given actions, and how far the policy's are from them."""
        given = self.action_head.from_env(actions)
        return {
            "logprobs": own.log_prob(given),
            "errors": self.action_head.errors(own.mode(), given),
        }
