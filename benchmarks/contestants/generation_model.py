"""Random language models that all contestants of `benchmarks.generation` share, by folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "family": "Qwen3",
        "vocab_size": 32,
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "tie_word_embeddings": True,
    },
    "0.5B": {
        "family": "Qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "1.5B": {
        "family": "Qwen2",
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "7B": {
        "family": "Qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}
"""By name; `small` has half a million parameters and a vocabulary of characters."""


def make(shape: str, folder: str) -> dict[str, float]:
    """Make a random model, unless the folder has one.

    Args:
        shape: One of `SHAPES`.
        folder: Where to save it.

    Returns:
        `weight_bytes` in bf16 and `token_bytes`, keys and values of a token in bf16.
    """
    import torch
    import transformers

    keys = dict(SHAPES[shape])
    family = keys.pop("family")
    ends = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**keys, **ends, max_position_embeddings=32768)
    if not (Path(folder) / "config.json").exists():
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        model.to(torch.float32 if shape == "small" else torch.bfloat16).save_pretrained(folder)
    head = keys.get("head_dim", keys["hidden_size"] // keys["num_attention_heads"])
    token = 2 * keys["num_hidden_layers"] * keys["num_key_value_heads"] * head
    width = keys["hidden_size"]
    layer = width * head * (2 * keys["num_attention_heads"] + 2 * keys["num_key_value_heads"])
    layer += 3 * width * keys["intermediate_size"]
    weights = keys["num_hidden_layers"] * layer + keys["vocab_size"] * width
    return {"weight_bytes": 2.0 * weights, "token_bytes": 2.0 * token}
