"""Llama, Qwen2, Qwen3 and their kin, run on the bare weights: a few operations per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlinf.hybrid_engines.generation.hf.kv_cache import CacheShape, Decode, KVCache
from rlinf.hybrid_engines.generation.hf.model import DecoderModel
from rlinf.hybrid_engines.generation.hf.weights import WeightArena

_PROJECTIONS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass
class Layer:
    """The weights of one layer, `[out, in]`; projections of the same input are one."""

    before_attention: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    norms: tuple[Tensor, Tensor] | None
    out: Tensor
    out_bias: Tensor | None
    before_mlp: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


def fused_groups(module: nn.Module) -> list[list[str]]:
    """Return the names of the parameters that are used as one."""
    groups = []
    for index, layer in enumerate(module.model.layers):
        for part, names in zip(("self_attn", "mlp"), _PROJECTIONS, strict=True):
            block = getattr(layer, part)
            for kind in ("weight", "bias"):
                if getattr(getattr(block, names[0]), kind) is not None:
                    groups.append([f"model.layers.{index}.{part}.{name}.{kind}" for name in names])
    return groups


def cache_shape(module: nn.Module, slots: int, capacity: int) -> CacheShape:
    """Return the sizes of the memory for keys and values."""
    config, attention = module.config, module.model.layers[0].self_attn
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return CacheShape(
        layers=config.num_hidden_layers,
        slots=slots,
        kv_heads=kv_heads,
        group=heads // kv_heads,
        head_dim=attention.head_dim,
        capacity=capacity,
    )


class LeanModel(DecoderModel):
    """Runs a model on its bare weights, with torch operations.

    Args:
        module: A model for which `why_not_plain` returns None.
        weights: Its weights, laid out by `fused_groups`.
        cache: Keys and values.
        compiled: Let `torch.compile` fuse what lies between matrix products.
    """

    path = "torch"

    def __init__(
        self, module: nn.Module, weights: WeightArena, cache: KVCache, compiled: bool = False
    ):
        self.module = module
        self.weights = weights
        self.slots = cache.shape.slots
        self.capacity = cache.shape.capacity
        self.packed, self.fixed_span = cache.packed, cache.fixed_span
        self._cache = cache
        self._epsilon = module.config.rms_norm_eps
        self._embedding = module.model.embed_tokens.weight
        self._norm = module.model.norm.weight
        self._head = module.lm_head.weight
        self._layers = [_layer(module, weights, index) for index in range(cache.shape.layers)]
        device = self._embedding.device
        places = torch.arange(self.capacity, device=device)[None]
        # The module's own table, in the precision that its forward would use.
        like = torch.empty(0, dtype=self._embedding.dtype, device=device)
        cosine, sine = module.model.rotary_emb(like, position_ids=places)
        first, second = sine[0].chunk(2, -1)
        self._cosine, self._sine = cosine[0].contiguous(), torch.cat((-first, second), -1)
        self._rotate, self._swiglu = rotate, swiglu
        if compiled:
            self._rotate = torch.compile(rotate, dynamic=True)
            self._swiglu = torch.compile(swiglu, dynamic=True)

    def allocate(self) -> None:
        """See the base."""
        self._cache.allocate()

    def free(self) -> None:
        """See the base."""
        self._cache.free()

    def bytes_per_row(self) -> int:
        """See the base."""
        return self._cache.bytes_per_slot(self._cache.shape, self._embedding.dtype)

    @property
    def cache_bytes(self) -> int:
        """See the base."""
        return self._cache.nbytes

    def claim(self, prefix: Sequence[int], rows: Sequence[int]) -> bool:
        """See the base."""
        return self._cache.claim(prefix, rows)

    def reused(self, row: int) -> int:
        """See the base."""
        return self._cache.reused(row)

    def extend(self, positions: np.ndarray) -> bool:
        """See the base."""
        return self._cache.extend(positions)

    def release(self, row: int, tokens: Sequence[int]) -> None:
        """See the base."""
        self._cache.release(row, tokens)

    def forget(self) -> None:
        """See the base."""
        self._cache.forget()

    def move(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """See the base."""
        self._cache.move(source, target, length)

    def prefill(self, prefixes: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Tensor:
        """See the base."""
        batch = self._cache.plan(prefixes, rows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._cache.prefill(layer, q, k, v, batch)

        hidden = self._forward(batch.tokens, batch.positions, attend)
        return self._logits(hidden[batch.last])

    def decode(self, tokens: Tensor, positions: Tensor, span: int) -> Tensor:
        """See the base."""
        step = self._cache.prepare(Decode(positions, span))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._cache.decode(layer, q, k, v, step)

        return self._logits(self._forward(tokens, positions, attend))

    def _forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states `[T, H]` of T tokens, before the last norm."""
        shape, epsilon = self._cache.shape, self._epsilon
        heads, kv_heads = shape.kv_heads * shape.group, shape.kv_heads
        width = (shape.head_dim,)
        x = F.embedding(tokens, self._embedding)
        cosine, sine = self._cosine[positions][:, None], self._sine[positions][:, None]
        for index, w in enumerate(self._layers):
            h = F.rms_norm(x, x.shape[-1:], w.before_attention, epsilon)
            qkv = F.linear(h, w.qkv, w.qkv_bias).unflatten(1, (-1, shape.head_dim))
            if w.norms is None:
                qk = self._rotate(qkv[:, : heads + kv_heads], cosine, sine)
                q, k = qk[:, :heads], qk[:, heads:]
            else:
                q, k = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
                q = self._rotate(F.rms_norm(q, width, w.norms[0], epsilon), cosine, sine)
                k = self._rotate(F.rms_norm(k, width, w.norms[1], epsilon), cosine, sine)
            v = qkv[:, heads + kv_heads :]
            x = added(x, attend(index, q, k, v), w.out, w.out_bias)
            h = F.rms_norm(x, x.shape[-1:], w.before_mlp, epsilon)
            h = self._swiglu(F.linear(h, w.gate_up, w.gate_up_bias))
            x = added(x, h, w.down, w.down_bias)
        return x

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(
            F.rms_norm(hidden, hidden.shape[-1:], self._norm, self._epsilon), self._head
        )


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn heads by their positions; pairs are (d, d + D / 2).

    Args:
        x: `[T, heads, D]`.
        cosine: `[T, 1, D]`.
        sine: `[T, 1, D]`, the first half negated.
    """
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cosine, torch.cat((second, first), -1), sine)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, of the halves of `[T, 2 * H]`."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def added(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x + h weightᵀ + bias, in the memory of x."""
    x.addmm_(h, weight.t())
    return x if bias is None else x.add_(bias)


def _layer(module: nn.Module, weights: WeightArena, index: int) -> Layer:
    layer, name = module.model.layers[index], f"model.layers.{index}"
    attention, mlp = layer.self_attn, layer.mlp

    def fused(part: str, names: Sequence[str], kind: str) -> Tensor | None:
        if getattr(getattr(getattr(layer, part), names[0]), kind) is None:
            return None
        return weights.fused([f"{name}.{part}.{each}.{kind}" for each in names])

    normed = hasattr(attention, "q_norm")
    return Layer(
        before_attention=layer.input_layernorm.weight,
        qkv=fused("self_attn", _PROJECTIONS[0], "weight"),
        qkv_bias=fused("self_attn", _PROJECTIONS[0], "bias"),
        norms=(attention.q_norm.weight, attention.k_norm.weight) if normed else None,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        before_mlp=layer.post_attention_layernorm.weight,
        gate_up=fused("mlp", _PROJECTIONS[1], "weight"),
        gate_up_bias=fused("mlp", _PROJECTIONS[1], "bias"),
        down=mlp.down_proj.weight,
        down_bias=mlp.down_proj.bias,
    )
