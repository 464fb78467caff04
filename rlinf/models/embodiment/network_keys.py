"""Keys of model sections that networks on states and pictures share, and heads on features."""

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


class ActorCriticKeys(StateNetworkKeys):
    """Keys of a policy with heads for actions and values on features; see `HeadSettings`."""

    share_trunk: bool = Field(
        False, description="Use the same hidden layers for actions and values."
    )
    orthogonal_init: bool = Field(
        True, description="Start from orthogonal weights, small ones where actions come out."
    )
    distribution: Literal[
        "auto", "gaussian", "squashed_gaussian", "deterministic", "categorical", "multi_categorical"
    ] = Field(
        "auto",
        description="Distribution of actions. auto follows the env: gaussian for real numbers, "
        "categorical for a choice, multi_categorical for several; squashed_gaussian brings real "
        "numbers into the env's range by tanh; deterministic does so and has no chance but the "
        "noise that is added while collecting.",
    )
    state_dependent_std: bool = Field(
        False, description="Predict the deviation from the state; false learns one per action."
    )
    init_log_std: Float = Field(0.0, description="Log of the deviation at the start.")
    log_std_min: Float = Field(-5.0, description="Smallest log of the deviation.")
    log_std_max: Float = Field(2.0, description="Largest log of the deviation.")
    clip_actions: bool = Field(
        True,
        description="Clip actions of a gaussian to the env's range, after their log-probability "
        "is taken.",
    )
    exploration_noise: Float = Field(
        0.1,
        gt=0,
        description="Deviation of the noise that is added to actions of distribution deterministic "
        "while collecting, as a part of half their range.",
    )
    num_q_heads: Int = Field(2, gt=0, description="Q-functions, if add_q_head is true.")
    q_head_type: Literal["default", "crossq"] = Field(
        "default",
        description="How Q-functions are normalised: by q_layer_norm, or over the batch as CrossQ "
        "needs it.",
    )
    q_hidden_sizes: list[Units] | None = Field(
        None, description="Units of each hidden layer of a Q-function; null is hidden_sizes."
    )
    q_layer_norm: bool = Field(
        False, description="Normalise each hidden layer of a Q-function over its units."
    )


class AugmentationKeys(Section):
    """Keys of what is changed at random in the pictures of supervised training."""

    random_shift: Int = Field(
        0,
        ge=0,
        description="Shift pictures by up to so many of their pixels in supervised training; 0 "
        "does not.",
    )
    random_crop: Float = Field(
        1.0,
        gt=0,
        le=1,
        description="Smallest share of height and width that a crop leaves of pictures in "
        "supervised training, before it is scaled back to their size; 1 does not crop.",
    )
    brightness_jitter: Float = Field(
        0.0,
        ge=0,
        le=1,
        description="Multiply colours of pictures in supervised training by 1 minus to 1 plus "
        "this; 0 does not.",
    )
    contrast_jitter: Float = Field(
        0.0,
        ge=0,
        le=1,
        description="Multiply distances of colours from their mean, as brightness_jitter; 0 does "
        "not.",
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
