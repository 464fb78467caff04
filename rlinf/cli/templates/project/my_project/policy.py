"""The policy: two small networks, one for the mean of the actions and one for the value."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from rlinf.config import Int, Section
from rlinf.models import register_model
from rlinf.models.embodiment.base_policy import BasePolicy
from torch import Tensor, nn
from torch.distributions import Normal


class PolicyKeys(Section):
    """Keys of `actor.model`, beside those of every model."""

    hidden_size: Int = Field(64, gt=0, description="Units of each hidden layer.")


@register_model("point_mass_policy", schema=PolicyKeys)
class PointMassPolicy(BasePolicy):
    """Normal actions around a mean that depends on the state.

    Shapes: B envs, n samples, S numbers in a state, C actions of A numbers each.
    """

    value_modules = ("value",)

    def __init__(self, cfg: Any, torch_dtype: torch.dtype) -> None:
        """Make the networks; `obs_dim` and `action_dim` of `cfg` come from the env."""
        super().__init__(cfg.action_dim, cfg.num_action_chunks)
        width = cfg.num_action_chunks * cfg.action_dim
        self.mean = _network(cfg.obs_dim, cfg.hidden_size, width)
        self.value = _network(cfg.obs_dim, cfg.hidden_size, 1) if cfg.add_value_head else None
        self.log_std = nn.Parameter(torch.full((width,), -0.5))
        with torch.no_grad():
            # It begins with no opinion: means near zero, whatever the state.
            self.mean[-1].weight.mul_(0.01)
        self.to(torch_dtype)

    def default_forward(
        self, forward_inputs: dict[str, Tensor], **wanted: bool
    ) -> dict[str, Tensor]:
        """Compute again, with gradients, what was done: [n, C*A] each, and values [n, 1]."""
        states = forward_inputs["states"]
        actions = self._actions(states)
        return {
            "logprobs": actions.log_prob(forward_inputs["action"]),
            "entropy": actions.entropy(),
            "values": self._values(states),
        }

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: dict[str, Any], mode: str = "train", **sampling: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Act on `states` [B, S]: actions [B, C, A], and what `default_forward` will need."""
        states = env_obs["states"]
        actions = self._actions(states)
        action = actions.mean
        if mode == "train":
            action = torch.normal(actions.mean, actions.stddev, generator=self.generator)
        result = {
            "prev_logprobs": actions.log_prob(action),
            "prev_values": self._values(states),
            "forward_inputs": {"states": states, "action": action},
        }
        return action.unflatten(-1, (self.num_action_chunks, self.action_dim)), result

    def _actions(self, states: Tensor) -> Normal:
        return Normal(self.mean(states), self.log_std.exp())

    def _values(self, states: Tensor) -> Tensor:
        return states.new_zeros(len(states), 1) if self.value is None else self.value(states)


def _network(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )
