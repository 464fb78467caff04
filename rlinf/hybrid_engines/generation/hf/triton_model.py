"""The lean model on CUDA with our own Triton kernels between its matrix products."""

from __future__ import annotations

import importlib.util

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlinf.hybrid_engines.generation.hf.kv_cache import KVCache
from rlinf.hybrid_engines.generation.hf.lean import LeanModel, added
from rlinf.hybrid_engines.generation.hf.weights import WeightArena

_MOST_PARTS = 8
_KEYS_OF_A_PART = 256
"""Fewer are not worth splitting."""


class TritonModel(LeanModel):
    """Decodes with nine kernels per layer, four of them matrix products.

    Prompts are read as `LeanModel` does.

    Args:
        module: As for `LeanModel`.
        weights: As for `LeanModel`.
        cache: Keys and values, an `SdpaCache` or a `DeviceBlockCache`.
    """

    path = "triton"

    def __init__(self, module: nn.Module, weights: WeightArena, cache: KVCache):
        super().__init__(module, weights, cache)
        self.fixed_span = True
        device, shape = self._embedding.device, cache.shape
        self._programs = 2 * _processors(device) // shape.kv_heads
        self._most_parts = max(1, min(_MOST_PARTS, shape.capacity // _KEYS_OF_A_PART))

    @staticmethod
    def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
        """Say why these kernels cannot be used, or return None."""
        if device.type != "cuda":
            return "the device is not CUDA"
        if dtype not in (torch.bfloat16, torch.float16):
            return f"the format is {dtype}; they are for bf16 and fp16"
        if head_dim not in (16, 32, 64, 128, 256):
            return f"heads have {head_dim} numbers, not 16, 32, 64, 128 or 256"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "the device is older than Ampere"
        return None if importlib.util.find_spec("triton") else "triton is not installed"

    def decode(self, tokens: Tensor, positions: Tensor, span: int) -> Tensor:
        """See the base."""
        from rlinf.hybrid_engines.generation.hf import triton_kernels as kernels

        epsilon, cache, table = self._epsilon, self._cache, self._cache.table
        parts = self._parts(tokens.shape[0])
        x = F.embedding(tokens, self._embedding)
        for index, w in enumerate(self._layers):
            keys, values = cache.keys[index], cache.values[index]
            h = kernels.rms_norm(x, w.before_attention, epsilon)
            qkv = F.linear(h, w.qkv, w.qkv_bias)
            q = kernels.turn_and_keep(
                qkv, self._cosine, self._sine, positions, w.norms, epsilon, keys, values, table
            )
            h = kernels.attend(q, keys, values, positions, parts, table)
            x = added(x, h, w.out, w.out_bias)
            h = kernels.rms_norm(x, w.before_mlp, epsilon)
            h = kernels.swiglu(F.linear(h, w.gate_up, w.gate_up_bias))
            x = added(x, h, w.down, w.down_bias)
        return F.linear(kernels.rms_norm(x, self._norm, epsilon), self._head)

    def draw(self, logits: Tensor, temperatures: Tensor, uniforms: Tensor, out: Tensor) -> None:
        """Draw one token per row; see `triton_kernels.draw`."""
        from rlinf.hybrid_engines.generation.hf import triton_kernels as kernels

        kernels.draw(logits, temperatures, uniforms, out)

    def _parts(self, rows: int) -> int:
        """Into how many parts the keys of a row are split, so that no processor is idle."""
        parts = 1
        while parts < self._most_parts and rows * parts < self._programs:
            parts *= 2
        return parts


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
