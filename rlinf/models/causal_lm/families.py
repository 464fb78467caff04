"""Which models are plain decoders, whose layers our own kernels know."""

from __future__ import annotations

from torch import nn

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotations that depend on the position alone, not on the length of the sequence."""


def why_not_plain(module: nn.Module) -> str | None:
    """Say why a causal language model of transformers is no plain decoder, or return None."""
    config = module.config
    if config.model_type not in FAMILIES:
        return f"model_type is {config.model_type!r}, not one of {', '.join(FAMILIES)}"
    if config.hidden_act != "silu":
        return f"hidden_act is {config.hidden_act!r}, not silu"
    rope = config.rope_parameters["rope_type"]
    if rope not in _FIXED_ROPE:
        return f"rope_type is {rope!r}, not one of {', '.join(_FIXED_ROPE)}"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if config.model_type == "mistral" and config.sliding_window is not None:
        kinds.add("sliding_attention")
    if kinds != {"full_attention"}:
        return f"it has layers of {', '.join(sorted(kinds))}"
    head_dim = module.model.layers[0].self_attn.head_dim
    return f"heads have {head_dim} numbers, which is odd" if head_dim % 2 else None
