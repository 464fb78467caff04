"""Keys that `flow_policy` adds to its model section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.models.embodiment.cnn_policy.config import ShiftedImageKeys
from rlinf.models.embodiment.flow.config import FlowKeys, SteeringKeys
from rlinf.models.embodiment.network_keys import StateNetworkKeys, Units


class FlowPolicyKeys(SteeringKeys, FlowKeys, StateNetworkKeys, ShiftedImageKeys):
    """Keys of the small flow policy."""

    hidden_sizes: list[Units] = Field(
        default_factory=lambda: [256, 256, 256],
        description="Units of each hidden layer of the velocity, and of the value function.",
    )
    activation: Literal["tanh", "relu", "elu", "silu"] = Field(
        "silu", description="Function between layers."
    )
    action_horizon: Int | None = Field(
        None,
        gt=0,
        description="Actions that are planned at a time, of which the first num_action_chunks are "
        "carried out; null is num_action_chunks.",
    )
    use_images: bool = Field(
        False, description="Look at images, encoded as in cnn_policy; false has the state alone."
    )

    @model_validator(mode="after")
    def _sees_something(self) -> FlowPolicyKeys:
        """See to it that there is something to look at."""
        if not (self.use_images or self.use_states):
            raise ValueError("use_images and use_states are both false: set one of them to true")
        return self


register_schema("model", "flow_policy", FlowPolicyKeys)
