"""Keys that `cnn_policy` adds to its model section."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int
from rlinf.models.embodiment.network_keys import ActorCriticKeys, ImageNetworkKeys


class ShiftedImageKeys(ImageNetworkKeys):
    """Keys of policies that see images."""

    random_shift: Int = Field(
        0,
        ge=0,
        description="Shift images by up to so many pixels while collecting and in supervised "
        "training; 0 does not.",
    )


class CNNPolicyKeys(ShiftedImageKeys, ActorCriticKeys):
    """Keys of the policy on images and state."""


register_schema("model", "cnn_policy", CNNPolicyKeys)
