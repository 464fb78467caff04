"""Keys that the training of a reward model adds to the `algorithm` section."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Section


class RewardModelKeys(Section):
    """Keys of `loss_type: reward_model`."""

    balance_classes: bool = Field(
        True,
        description="Let solved and unsolved observations have the same weight in the loss, "
        "however many there are of each.",
    )


register_schema("loss", "reward_model", RewardModelKeys)
