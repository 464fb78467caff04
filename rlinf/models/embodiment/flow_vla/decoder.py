"""Decoder layers of Llama, Gemma and Qwen3 whose keys and values others can attend to.

Shapes: n samples, T places, S places seen, H hidden units, K key-value heads, E numbers of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

KeysValues = tuple[Tensor, Tensor]
"""Keys, rotated to their positions, and values of a layer, each `[n, K, S, E]`."""


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a stack of decoder layers.

    Attributes:
        hidden_size: H, hidden units.
        intermediate_size: Units between the two layers of an MLP.
        num_hidden_layers: Layers.
        num_attention_heads: Heads of queries.
        num_key_value_heads: K, heads of keys and values.
        head_dim: E, numbers of a head.
        norm_eps: Of norms.
        gemma: Norms scale by `1 + weight` and MLPs have GELUs, as Gemma; else as Llama.
        rope_base: Of the angles that queries and keys are rotated by.
        head_norms: Queries and keys of each head are normed first, as in Qwen3.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    norm_eps: float = 1e-6
    gemma: bool = False
    rope_base: float = 10_000.0
    head_norms: bool = False


class Norm(nn.Module):
    """Division by the root mean square, then a scale: learned, or computed from a condition."""

    def __init__(
        self, sizes: DecoderSizes, cond_dim: int | None = None, width: int | None = None
    ) -> None:
        """Make the weights.

        Args:
            sizes: Of the stack.
            cond_dim: Numbers of the condition; None learns the scale.
            width: Numbers that are normed together; None is the hidden units.
        """
        super().__init__()
        width = width or sizes.hidden_size
        self.eps, self.offset = sizes.norm_eps, float(sizes.gemma)
        if cond_dim is None:
            start = torch.zeros if sizes.gemma else torch.ones
            self.weight = nn.Parameter(start(width))
        else:
            self.dense = nn.Linear(cond_dim, 3 * width)
            nn.init.zeros_(self.dense.weight)

    def forward(self, x: Tensor, cond: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return `[n, T, H]` and, with a condition, the gate of what follows, `[n, 1, H]`.

        Args:
            x: `[n, T, H]`.
            cond: `[n, cond_dim]`; None if the scale is learned.
        """
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if cond is None:
            return (wide * (self.offset + self.weight.float())).to(x.dtype), None
        scale, shift, gate = self.dense(cond).unsqueeze(1).chunk(3, -1)
        return (wide * (1.0 + scale.float()) + shift.float()).to(x.dtype), gate


class Attention(nn.Module):
    """The four projections of attention.

    Args:
        sizes: Of the stack.
        memory_dim: Numbers of what keys and values are made of; None is the hidden units.
    """

    def __init__(self, sizes: DecoderSizes, memory_dim: int | None = None) -> None:
        super().__init__()
        hidden, memory = sizes.hidden_size, memory_dim or sizes.hidden_size
        queries = sizes.num_attention_heads * sizes.head_dim
        keys = sizes.num_key_value_heads * sizes.head_dim
        linear: Callable[[int, int], nn.Linear] = partial(nn.Linear, bias=False)
        self.head_dim, self.rope_base = sizes.head_dim, sizes.rope_base
        self.q_proj, self.k_proj = linear(hidden, queries), linear(memory, keys)
        self.v_proj, self.o_proj = linear(memory, keys), linear(queries, hidden)
        self.q_norm = self.k_norm = None
        if sizes.head_norms:
            self.q_norm, self.k_norm = (Norm(sizes, width=sizes.head_dim) for _ in range(2))

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries at their positions, `[n, heads, T, E]`."""
        return self._placed(self.q_proj(x), self.q_norm, positions)

    def keys_values(self, x: Tensor, positions: Tensor) -> KeysValues:
        """Return keys, at their positions, and values of hidden states `[n, T, H]`."""
        keys = self._placed(self.k_proj(x), self.k_norm, positions)
        # A layer must not return views: FSDP's hooks are lost on them.
        return keys, self._heads(self.v_proj(x)).clone()

    def projected(self, memory: KeysValues) -> KeysValues:
        """Return keys and values made of keys and values of another stack."""
        keys, values = (part.transpose(1, 2).flatten(2) for part in memory)
        return self._heads(self.k_proj(keys)).clone(), self._heads(self.v_proj(values)).clone()

    def attend(self, queries: Tensor, memory: KeysValues, mask: Tensor) -> Tensor:
        """Return what queries find, `[n, T, H]`.

        Args:
            queries: `[n, heads, T, E]`.
            memory: Of S places.
            mask: Which places are seen, bool `[n, 1, T, S]`.
        """
        found = functional.scaled_dot_product_attention(
            queries, *memory, attn_mask=mask, enable_gqa=True
        )
        return self.o_proj(found.transpose(1, 2).flatten(2))

    def _placed(self, x: Tensor, norm: Norm | None, positions: Tensor) -> Tensor:
        heads = self._heads(x)
        heads = heads if norm is None else norm(heads)[0]
        return rotate(heads, positions, self.rope_base)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class GatedMLP(nn.Module):
    """Two layers, the first gated."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        hidden, inner = sizes.hidden_size, sizes.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)
        self.act = partial(functional.gelu, approximate="tanh") if sizes.gemma else functional.silu

    def forward(self, x: Tensor) -> Tensor:
        """Return `[n, T, H]` for x of the same shape."""
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Attention to own places and those before them, then an MLP.

    Args:
        sizes: Of the stack.
        cond_dim: Numbers of the condition that norms depend on; None is none.
        memory_dim: Numbers of a place before, over all heads: the layer attends to nothing else,
            with keys and values of its own made of them. None attends to both as they are.
    """

    def __init__(
        self, sizes: DecoderSizes, cond_dim: int | None = None, memory_dim: int | None = None
    ) -> None:
        super().__init__()
        self.crosses = memory_dim is not None
        self.input_layernorm = Norm(sizes, cond_dim)
        self.self_attn = Attention(sizes, memory_dim)
        self.post_attention_layernorm = Norm(sizes, cond_dim)
        self.mlp = GatedMLP(sizes)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor,
        before: KeysValues | None = None,
        cond: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Return hidden states `[n, T, H]`, and keys and values of the T places.

        Args:
            x: `[n, T, H]`.
            positions: Of the T places, `[n, T]`.
            mask: Which places are seen, those before first, bool `[n, 1, T, S]`.
            before: Keys and values of the places before; None if there are none.
            cond: What norms depend on, `[n, cond_dim]`.
        """
        normed, gate = self.input_layernorm(x, cond)
        if self.crosses:
            own = self.self_attn.projected(before)
            seen, positions = own, positions - positions[:, :1]
            mask = mask[..., : own[0].shape[2]]
        else:
            seen = own = self.self_attn.keys_values(normed, positions)
            if before is not None:
                seen = tuple(torch.cat(parts, 2) for parts in zip(before, own, strict=True))
        queries = self.self_attn.queries(normed, positions)
        x = x + _gated(self.self_attn.attend(queries, seen, mask), gate)
        normed, gate = self.post_attention_layernorm(x, cond)
        return x + _gated(self.mlp(normed), gate), own


class Decoder(nn.Module):
    """A stack of layers, and the norm after them.

    Args:
        sizes: Of the stack.
        vocabulary: Rows of the embedding of tokens; None has no embedding.
        cond_dim: As in `DecoderLayer`.
        memory_dims: As in `DecoderLayer`, of each layer; empty is None for all.
    """

    def __init__(
        self,
        sizes: DecoderSizes,
        vocabulary: int | None = None,
        cond_dim: int | None = None,
        memory_dims: Sequence[int | None] = (),
    ) -> None:
        super().__init__()
        self.sizes = sizes
        if vocabulary is not None:
            self.embed_tokens = nn.Embedding(vocabulary, sizes.hidden_size)
            nn.init.normal_(self.embed_tokens.weight, std=0.02)
        dims = memory_dims or [None] * sizes.num_hidden_layers
        self.layers = nn.ModuleList(DecoderLayer(sizes, cond_dim, dim) for dim in dims)
        self.norm = Norm(sizes, cond_dim)

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings of tokens, scaled by the root of H, `[n, T, H]`."""
        return self.embed_tokens(ids) * math.sqrt(self.sizes.hidden_size)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor,
        before: Sequence[KeysValues] | None = None,
        cond: Tensor | None = None,
    ) -> tuple[Tensor, list[KeysValues]]:
        """Return normed hidden states, and keys and values of each layer; see `DecoderLayer`."""
        found = []
        for number, layer in enumerate(self.layers):
            past = None if before is None else before[number]
            x, own = layer(x, positions, mask, past, cond)
            found.append(own)
        return self.norm(x, cond)[0], found


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Return heads rotated to their positions: number i with number i + E/2.

    Args:
        x: `[n, heads, T, E]`.
        positions: `[n, T]`.
        base: The i-th angle of a position p is `p / base^(2i / E)`.
    """
    half = x.shape[-1] // 2
    share = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angles = positions[:, None, :, None].float() / base**share
    sine, cosine = angles.sin(), angles.cos()
    one, two = x.float().split(half, -1)
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1).to(x.dtype)


def _gated(x: Tensor, gate: Tensor | None) -> Tensor:
    return x if gate is None else x * gate
