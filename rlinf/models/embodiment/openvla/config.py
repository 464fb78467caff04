"""Keys that `openvla` and `openvla_oft` add to their model section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Float, Int
from rlinf.config.schema.model import LoraKeys
from rlinf.models.embodiment.network_keys import AugmentationKeys

Units = Annotated[Int, Field(gt=0)]


class OpenVLAKeys(LoraKeys, AugmentationKeys):
    """Keys of policies that act by tokens of a language model."""

    obs_dim: Int | None = Field(
        None, gt=0, description="Numbers in an observation; null asks the env."
    )
    action_horizon: Int | None = Field(
        None,
        gt=0,
        description="Actions that are planned at a time, of which the first num_action_chunks are "
        "carried out; null is num_action_chunks.",
    )
    hf_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Sizes of the language model from scratch, a Llama: hidden_size, "
        "intermediate_size, num_hidden_layers, num_attention_heads, ...; its vocabulary is that of "
        "the tokenizer, and the bins.",
    )
    words: list[str] = Field(
        default_factory=list,
        description="Words of the instructions, for a model from scratch: one token each.",
    )
    tokenizer_path: str | None = Field(
        None, description="Folder with a tokenizer; null is that of model_path, or the words."
    )
    prompt: str = Field(
        "In: What action should the robot take to {task}?\nOut:",
        description="What the model reads; {task} is the instruction, in lower case.",
    )
    max_prompt_length: Int = Field(
        32, gt=0, description="Tokens that a prompt is padded to; a longer one is an error."
    )
    n_action_bins: Int = Field(
        256, ge=2, description="Bins of each number of an action, the highest of all tokens."
    )
    temperature: Float = Field(
        1.0,
        gt=0,
        description="What logits are divided by, in rollouts and where their log-probabilities "
        "are computed again.",
    )
    eval_tokens: Literal["likeliest", "median"] = Field(
        "likeliest",
        description="What evaluations take: the likeliest bin of each number, or the one that half "
        "of the probability lies up to, which is steadier where many bins are about as likely.",
    )
    unnorm_key: str | None = Field(
        None,
        description="Dataset whose statistics actions are scaled by; null is the only one.",
    )
    statistics_path: str | None = Field(
        None,
        description="File of such statistics, or a folder with dataset_statistics.json; null is "
        "that of model_path, or the range of actions that the env says.",
    )
    num_images_in_input: Int = Field(
        0,
        ge=0,
        description="Cameras that are looked at: main_images, then wrist_images, then "
        "extra_view_images; 0 is none.",
    )
    vision_towers: list[dict[str, Any]] = Field(
        default_factory=list,
        max_length=2,
        description="Sizes of one or two vision transformers from scratch: embed_dim, depth, "
        "num_heads, mlp_dim, patch_size, image_size, ...",
    )
    use_proprio: bool = Field(True, description="Let the model see the state, as one token.")
    normalize_obs: bool = Field(
        True,
        description="Shift and scale states by mean and deviation of those first learned from, "
        "where the statistics of the dataset do not say how.",
    )
    obs_clip: Float = Field(
        10.0, gt=0, description="Largest absolute value of a normalised observation."
    )
    value_hidden_sizes: list[Units] = Field(
        default_factory=lambda: [256],
        description="Units of each hidden layer of the value function, if add_value_head is true.",
    )
    detach_critic_input: bool = Field(
        False, description="Let the value function learn without changing what it looks at."
    )
    freeze_vision_encoder: bool = Field(
        False, description="Leave the vision towers as they are; layers of FiLM learn."
    )
    freeze_language_model: bool = Field(False, description="Leave the language model as it is.")


class OpenVLAOFTKeys(OpenVLAKeys):
    """Keys of the policy that predicts all tokens of a chunk at once."""

    use_film: bool = Field(
        False, description="Let the instruction scale and shift features of the vision towers."
    )


register_schema("model", "openvla", OpenVLAKeys)
register_schema("model", "openvla_oft", OpenVLAOFTKeys)
