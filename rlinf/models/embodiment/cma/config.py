"""Keys that `cma` adds to its model section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int, Section
from rlinf.models.embodiment.network_keys import Units


class CMAKeys(Section):
    """Keys of the recurrent policy on pictures and an instruction."""

    words: list[str] = Field(
        ..., min_length=1, description="Words of the instructions; case does not matter."
    )
    max_words: Int = Field(
        12, gt=0, description="Words that an instruction may have; a longer one is an error."
    )
    word_dim: Int = Field(32, gt=0, description="Numbers that describe a word.")
    image_size: Int = Field(
        40, gt=0, description="Height and width that pictures are brought to (pixels)."
    )
    channels: list[Units] = Field(
        default_factory=lambda: [32, 64],
        min_length=1,
        description="Channels of each convolution; the first divides the size of the picture by "
        "four, each other one by two. The policy attends to the places that are left.",
    )
    rnn_size: Int = Field(128, gt=0, description="Numbers that each of the two GRUs remembers.")
    attention_dim: Int = Field(64, gt=0, description="Numbers in queries, keys and values.")
    hidden_sizes: list[Units] = Field(
        default_factory=list, description="Units of each layer between memory, action and value."
    )
    activation: Literal["tanh", "relu", "elu", "silu"] = Field(
        "tanh", description="Function between these layers."
    )
    sequence_length: Int = Field(
        32,
        gt=0,
        description="Chunk steps that a gradient goes back through; a rollout must be a whole "
        "number of such sequences, and so must a minibatch.",
    )


register_schema("model", "cma", CMAKeys)
