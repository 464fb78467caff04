"""Tiny random models of several families, and the slow way to say how likely a response was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")

VOCABULARY = 48
EOS = 1

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "bos_token_id": 2,
}

_LEAN = {
    "qwen2": ("Qwen2", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "qwen2 tied": (
        "Qwen2",
        {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "qwen3": ("Qwen3", {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}),
    "qwen3 tied": (
        "Qwen3",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "tie_word_embeddings": True,
        },
    ),
    "llama": ("Llama", {"num_attention_heads": 2, "num_key_value_heads": 2}),
    "llama with biases": (
        "Llama",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "llama 3 rotations": (
        "Llama",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama with small heads": ("Llama", {"num_attention_heads": 4, "num_key_value_heads": 4}),
    "mistral": (
        "Mistral",
        {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": None},
    ),
}
LEAN_FAMILIES = tuple(_LEAN)

_OTHER = {
    "gpt2": (
        "GPT2",
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256, "vocab_size": VOCABULARY},
    ),
    "gpt_neox": (
        "GPTNeoX",
        "GPTNeoXForCausalLM",
        {**_COMMON, "num_attention_heads": 2, "tie_word_embeddings": False},
    ),
    "gemma2": (
        "Gemma2",
        "Gemma2ForCausalLM",
        {**_COMMON, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
    ),
    "qwen2 with a window": (
        "Qwen2",
        "Qwen2ForCausalLM",
        {
            **_COMMON,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "use_sliding_window": True,
            "sliding_window": 300,
            "max_window_layers": 0,
        },
    ),
}
OTHER_FAMILIES = tuple(_OTHER)


def tiny(family: str = "qwen3", seed: int = 0, **changes: object) -> nn.Module:
    """A random model whose distributions are neither flat nor sharp."""
    if family in _LEAN:
        name, keys = _LEAN[family]
        keys, kind = {**_COMMON, **keys}, f"{name}ForCausalLM"
    else:
        name, kind, keys = _OTHER[family]
    config = getattr(transformers, f"{name}Config")(**{**keys, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Norms and biases, too: one that is left out shows.
                parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 0.1))
    return model


@torch.no_grad()
def logprobs(model: nn.Module, prompt: list[int], response: list[int], temperature: float = 1.0):
    """Log-probability of each token of a response by one plain forward, `[L]`."""
    tokens = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    chosen = torch.tensor(response)[:, None]
    return (logits / (temperature or 1.0)).log_softmax(-1).gather(1, chosen)[:, 0]


def chi_square_limit(freedom: int) -> float:
    """What a chi-square statistic exceeds with probability 1e-3 (Wilson and Hilferty)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + 3.09 * part**0.5) ** 3
