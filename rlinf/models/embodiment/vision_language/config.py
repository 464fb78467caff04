"""Keys of policies on a vision-language model."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from rlinf.config.schema.base import Int
from rlinf.config.schema.model import LoraKeys
from rlinf.models.embodiment.network_keys import ActorCriticKeys, AugmentationKeys


class VisionLanguageKeys(LoraKeys, ActorCriticKeys, AugmentationKeys):
    """Keys that `VisionLanguagePolicy` reads; a policy adds those of its own network."""

    hf_config: dict[str, Any] = Field(
        default_factory=dict, description="Sizes of the language model from scratch."
    )
    words: list[str] = Field(
        default_factory=list,
        description="Words of the instructions, for a model from scratch: one token each.",
    )
    prompt: str = Field("{task}", description="What the model reads; {task} is the instruction.")
    max_prompt_length: Int = Field(
        32, gt=0, description="Tokens that a prompt is padded to; a longer one is an error."
    )
    num_images_in_input: Int = Field(
        0,
        ge=0,
        description="Cameras that are looked at: main_images, then wrist_images, then "
        "extra_view_images; 0 is none.",
    )
    use_proprio: bool = Field(True, description="Let the heads see the state, too.")
