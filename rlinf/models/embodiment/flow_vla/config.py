"""Keys that `smolvla`, `openpi` and `gr00t` add to their model section."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int
from rlinf.config.schema.model import LoraKeys
from rlinf.models.embodiment.flow.config import FlowKeys, SteeringKeys, Units
from rlinf.models.embodiment.network_keys import AugmentationKeys


class FlowVLAKeys(LoraKeys, SteeringKeys, FlowKeys, AugmentationKeys):
    """Keys of policies with a vision-language prefix and an action expert."""

    num_steps: Int = Field(10, gt=0, description="Denoising steps from noise to an action.")
    obs_dim: Int | None = Field(
        None, gt=0, description="Numbers in an observation; null asks the env."
    )
    hf_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Sizes of a network from scratch that differ from the published ones; see "
        "docs/vla.md. Its vocabulary is that of the tokenizer.",
    )
    words: list[str] = Field(
        default_factory=list,
        description="Words of the instructions, for a network from scratch: one token each.",
    )
    tokenizer_path: str | None = Field(
        None, description="Folder with a tokenizer; null is that of model_path, or the words."
    )
    num_images_in_input: Int = Field(
        1,
        ge=0,
        description="Cameras that are looked at: main_images, then wrist_images, then "
        "extra_view_images; 0 is none.",
    )
    action_horizon: Int | None = Field(
        None,
        gt=0,
        description="Actions that are denoised together, of which the first num_action_chunks are "
        "done; null is that of model_path, or num_action_chunks.",
    )
    statistics_path: str | None = Field(
        None,
        description="File of statistics that states and actions are scaled by, or a folder with "
        "dataset_statistics.json; null is those of model_path, or the states first learned from "
        "and the range of actions that the env says.",
    )
    unnorm_key: str | None = Field(
        None, description="Dataset of these statistics; null is the only one."
    )
    normalize_obs: bool = Field(
        True,
        description="Shift and scale states by the statistics; false takes them as they are.",
    )
    obs_clip: Float = Field(
        10.0, gt=0, description="Largest absolute value of a normalised observation."
    )
    value_source: Literal["prefix", "expert"] = Field(
        "prefix",
        description="What the value function looks at: the mean of the prefix's last hidden "
        "states, or of the expert's, at the first denoising step of a chunk without noise.",
    )
    value_hidden_sizes: list[Units] = Field(
        default_factory=lambda: [256],
        description="Units of each hidden layer of the value function, if add_value_head is true.",
    )
    noise_hidden_sizes: list[Units] = Field(
        default_factory=lambda: [256],
        description="Units of each hidden layer of learned noise (flow_noise, reinflow).",
    )
    detach_critic_input: bool = Field(
        False, description="Let the value function learn without changing what it looks at."
    )
    steering_image_size: Int = Field(
        64, ge=16, description="Height and width of pictures as the actor of use_dsrl sees them."
    )
    freeze_vision_encoder: bool = Field(False, description="Leave the vision tower as it is.")
    train_expert_only: bool = Field(
        False, description="Leave the whole vision-language model as it is."
    )


class SmolVLAKeys(FlowVLAKeys):
    """Keys of SmolVLA."""

    max_prompt_length: Int = Field(
        48, gt=0, description="Tokens that a prompt is padded to; a longer one is an error."
    )


class OpenPIKeys(FlowVLAKeys):
    """Keys of pi0 and pi0.5."""

    variant: Literal["pi0", "pi05"] = Field("pi0", description="Which of the two models it is.")
    max_prompt_length: Int | None = Field(
        None,
        gt=0,
        description="Tokens that a prompt is padded to; a longer one is an error. null is 48, or "
        "200 where the prompt holds the state.",
    )
    discrete_state_input: bool = Field(
        True,
        description="Write the state into the prompt, in 256 bins (pi05); false leaves it out.",
    )


class GrootKeys(FlowVLAKeys):
    """Keys of GR00T N1.5."""

    num_steps: Int = Field(4, gt=0, description="Denoising steps from noise to an action.")
    max_prompt_length: Int = Field(
        64,
        gt=0,
        description="Tokens that a prompt is padded to, without those of pictures; a longer one is "
        "an error.",
    )
    embodiment_tag: Literal["new_embodiment", "gr1", "agibot_genie1", "oxe_droid"] = Field(
        "new_embodiment",
        description="The robot: which layers encode states and decode actions, and whose "
        "statistics of model_path they are scaled by.",
    )
    state_keys: list[str] = Field(
        default_factory=list,
        description="Parts of a state, in the order in which the env has them, of the statistics "
        "of model_path; empty is all of them.",
    )
    action_keys: list[str] = Field(
        default_factory=list, description="Parts of an action, as state_keys."
    )
    listed_instruction: bool = Field(
        False,
        description="Write the instruction as a list of one text, as lerobot 0.4 and 0.5 do.",
    )


register_schema("model", "smolvla", SmolVLAKeys)
register_schema("model", "openpi", OpenPIKeys)
register_schema("model", "gr00t", GrootKeys)
