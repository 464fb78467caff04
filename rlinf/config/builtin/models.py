"""Keys that the built-in models add to `actor.model`, `rollout.model` and `critic.model`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int, Section


class MLPPolicyKeys(Section):
    """Keys of the Gaussian policy on state vectors."""

    obs_dim: Int | None = Field(
        None, gt=0, description="Numbers in an observation; null asks the env."
    )
    hidden_sizes: list[Int] = Field(
        default_factory=lambda: [128, 128], description="Units of each hidden layer."
    )
    activation: Literal["tanh", "relu", "elu", "silu"] = Field(
        "tanh", description="Function between layers."
    )
    state_dependent_std: bool = Field(
        False, description="Predict the deviation from the state; false learns one per action."
    )
    init_log_std: Float = Field(0.0, description="Log of the deviation at the start.")
    normalize_obs: bool = Field(
        True, description="Shift and scale observations by their running mean and deviation."
    )


class CNNPolicyKeys(MLPPolicyKeys):
    """Keys of the Gaussian policy on images and state."""

    channels: list[Int] = Field(
        default_factory=lambda: [32, 64, 64], description="Channels of each convolution."
    )
    image_size: Int = Field(84, gt=0, description="Height and width of images (pixels).")


class CausalLMKeys(Section):
    """Keys of language models loaded through transformers."""

    attn_implementation: str = Field("sdpa", description="Attention kernel of the trainer.")
    trust_remote_code: bool = Field(False, description="Run Python code found in the folder.")
    lora_target_modules: list[str] = Field(
        default_factory=list, description="Modules that get adapters; empty is all linear ones."
    )


for _name, _keys in {
    "mlp_policy": MLPPolicyKeys,
    "cnn_policy": CNNPolicyKeys,
    "qwen2.5": CausalLMKeys,
    "qwen3": CausalLMKeys,
    "llama": CausalLMKeys,
    "hf_causal_lm": CausalLMKeys,
}.items():
    register_schema("model", _name, _keys)
