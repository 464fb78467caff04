"""Keys that language models add to `actor.model`, `rollout.model` and `critic.model`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Int, Section

HF_MODEL_TYPES: dict[str, str | None] = {
    "qwen2.5": "qwen2",
    "qwen3": "qwen3",
    "llama": "llama",
    "hf_causal_lm": None,
}
"""Model types of the config, and what transformers calls them; None is any."""


class CausalLMKeys(Section):
    """Keys of language models loaded through transformers."""

    hf_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Sizes of a model from scratch, as in the config.json of transformers: "
        "vocab_size, hidden_size, num_hidden_layers, ...",
    )
    attn_implementation: str = Field(
        "sdpa", description="Attention kernel of the trainer; others than sdpa pad sequences."
    )
    sequence_layout: Literal["auto", "packed", "padded"] = Field(
        "auto",
        description="How the trainer lays sequences out: end to end, or as rows with padding; "
        "auto is what is quicker: rows on a CPU, end to end elsewhere. Results are the same.",
    )
    logits_chunk_tokens: Int | None = Field(
        None,
        gt=0,
        description="Tokens whose logits exist at a time in the trainer; null picks by memory.",
    )
    trust_remote_code: bool = Field(False, description="Run Python code found in the folder.")


for _name in HF_MODEL_TYPES:
    register_schema("model", _name, CausalLMKeys)
