"""Keys that `mlp_policy` adds to its model section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int
from rlinf.models.embodiment.network_keys import StateNetworkKeys, Units


class MLPPolicyKeys(StateNetworkKeys):
    """Keys of the policy on state vectors."""

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


register_schema("model", "mlp_policy", MLPPolicyKeys)
