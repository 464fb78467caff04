"""Keys that language models add to `actor.model`, `rollout.model` and `critic.model`."""

from __future__ import annotations

from pydantic import Field

from rlinf.config.plugins import register_schema
from rlinf.config.schema.base import Section


class CausalLMKeys(Section):
    """Keys of language models loaded through transformers."""

    attn_implementation: str = Field("sdpa", description="Attention kernel of the trainer.")
    trust_remote_code: bool = Field(False, description="Run Python code found in the folder.")
    lora_target_modules: list[str] = Field(
        default_factory=list, description="Modules that get adapters; empty is all linear ones."
    )


for _name in ("qwen2.5", "qwen3", "llama", "hf_causal_lm"):
    register_schema("model", _name, CausalLMKeys)
