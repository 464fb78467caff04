"""Keys of model sections that small networks on states and pictures share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlinf.config.schema.base import Float, Int, Section

Units = Annotated[Int, Field(gt=0)]


class StateNetworkKeys(Section):
    """Keys of a network on state vectors."""

    obs_dim: Int | None = Field(
        None, gt=0, description="Numbers in an observation; null asks the env."
    )
    hidden_sizes: list[Units] = Field(
        default_factory=lambda: [128, 128], description="Units of each hidden layer."
    )
    activation: Literal["tanh", "relu", "elu", "silu"] = Field(
        "tanh", description="Function between layers."
    )
    normalize_obs: bool = Field(
        True, description="Shift and scale observations by their running mean and deviation."
    )
    obs_clip: Float = Field(
        10.0, gt=0, description="Largest absolute value of a normalised observation."
    )


class ImageNetworkKeys(Section):
    """Keys of a network on images."""

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
