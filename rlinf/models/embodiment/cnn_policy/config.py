"""Keys that `cnn_policy` adds to its model section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int, Section
from rlinf.models.embodiment.mlp_policy.config import MLPPolicyKeys, Units


class ImageKeys(Section):
    """Keys of policies that see images."""

    channels: list[Units] = Field(
        default_factory=lambda: [32, 64, 64],
        min_length=1,
        description="Channels of each convolution; the first divides the size of the image by "
        "four, each other one by two.",
    )
    image_size: Int = Field(
        84, gt=0, description="Height and width that images are brought to (pixels)."
    )
    pooling: Literal["flatten", "spatial_softmax"] = Field(
        "flatten",
        description="Use all of the last feature map, or where each of its channels is strongest.",
    )
    feature_dim: Int = Field(256, gt=0, description="Numbers that describe one image.")
    use_states: bool = Field(True, description="Use the state vector beside the images.")
    wrist_views: Int = Field(0, ge=0, description="Wrist cameras to use, of `wrist_images`.")
    extra_views: Int = Field(0, ge=0, description="Cameras to use of `extra_view_images`.")
    random_shift: Int = Field(
        0,
        ge=0,
        description="Shift images by up to so many pixels while collecting; 0 does not.",
    )


class CNNPolicyKeys(ImageKeys, MLPPolicyKeys):
    """Keys of the policy on images and state."""


register_schema("model", "cnn_policy", CNNPolicyKeys)
