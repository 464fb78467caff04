"""Small language models and sequences, and the slow way to what they say."""

from __future__ import annotations

from typing import Any

import torch

from rlinf.data.token_batch import TokenBatch
from rlinf.models import get_model
from rlinf.models.causal_lm.layout import Sequences
from rlinf.models.causal_lm.model import CausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
QWEN3 = {"model_type": "qwen3", "hf_config": SIZES}


def make(keys: dict[str, Any] | None = None, seed: int = 0) -> CausalLM:
    """A fresh model, with weights large enough that its answers differ."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = get_model({**QWEN3, **(keys or {})}, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3.0)
    return model


def examples(seed: int = 0, count: int = 6, longest: int = 9) -> list[tuple[list[int], list[int]]]:
    """Random prompts and responses; the second prompt has one token, the third response none."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count, 2), generator=g)
    if count > 2:
        lengths[1, 0], lengths[2, 1] = 1, 0
    return [
        tuple(torch.randint(0, 19, (int(n),), generator=g).tolist() for n in pair)
        for pair in lengths
    ]


def ask(model: CausalLM, sequences: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
    """What a model says of the response tokens of sequences."""
    batch = TokenBatch.of_examples(sequences)
    return model(Sequences(batch.tokens, batch.prompts, batch.responses), **kwargs)


def slowly(model: CausalLM, sequences: Any, temperature: float = 1.0) -> dict[str, torch.Tensor]:
    """The same from the logits of each sequence alone, by the model of transformers."""
    plain = model.plain
    before = plain.config._attn_implementation
    plain.set_attn_implementation("eager")
    logprobs, entropy = [], []
    for prompt, response in sequences:
        logits = plain(input_ids=torch.tensor([prompt + response])).logits[0] / temperature
        logp = logits.log_softmax(-1)
        for place, token in enumerate(response, len(prompt) - 1):
            logprobs.append(logp[place, token])
            entropy.append(-(logp[place].exp() * logp[place]).sum())
    plain.set_attn_implementation(before)
    return {"logprobs": torch.stack(logprobs), "entropy": torch.stack(entropy)}


def gradients(model: CausalLM, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradient of a loss in all that is trained."""
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
