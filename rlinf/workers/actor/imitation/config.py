"""Keys that behaviour cloning adds to the `algorithm` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Section


class BehaviourCloningKeys(Section):
    """Keys of `loss_type: embodied_bc`."""

    bc_loss: Literal["mse", "nll"] = Field(
        "mse",
        description="What is made small: the square of how far the policy's action is from that "
        "of the data, or the negative log-probability of that action, which also fits the "
        "deviation. Choices have the latter in any case, and policies that define a loss of their "
        "own, such as flow_policy, have that.",
    )


register_schema("loss", "embodied_bc", BehaviourCloningKeys)
