"""Attention over sequences that lie end to end in one row, each seeing only itself.

Where torch has a kernel for sequences of various lengths (CUDA, 16 bits), it is used. Elsewhere
only the attention itself is computed on padded rows, causally and so without a mask; all other
layers see no padding. Neither needs a package besides torch.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.models.causal_lm.layout import PackedRow

NAME = "rlinf_packed"
"""What `attn_implementation` of transformers calls it."""

_NOT_COMPUTED = ("softcap", "s_aux", "position_bias")


def register() -> str:
    """Make the attention known to transformers; return its name there."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    return NAME


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packed: PackedRow | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return an attention function as transformers wants it.

    Args:
        module: the attention layer.
        query: `[1, heads, N, D]`.
        key: `[1, kv_heads, N, D]`.
        value: `[1, kv_heads, N, D]`.
        attention_mask: not used.
        scaling: factor on the scores; None is 1 / sqrt(D).
        dropout: must be 0.
        sliding_window: how far back a token sees; None is to the beginning.
        packed: where the sequences lie.
        **others: what this kernel has no use for.

    Returns:
        `[1, N, heads, D]`, and None for the weights.

    Raises:
        ValueError: the architecture asks for something that is not computed here.
    """
    wanted = [name for name in _NOT_COMPUTED if others.get(name) is not None]
    if packed is None or wanted or dropout:
        what = f"wants {', '.join(wanted)}" if wanted else "does not pass on where sequences lie"
        raise ValueError(
            f"{type(module).__name__} {'drops out' if dropout else what}, which packed attention "
            "does not know; set model.sequence_layout to padded"
        )
    window = sliding_window if sliding_window and sliding_window < packed.longest else None
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    query, key, value = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    kernel = _varlen_kernel(query)
    if kernel is not None:
        shared = query.shape[1] // key.shape[1]
        groups = {}
        if shared > 1 and "enable_gqa" in _arguments(kernel):
            groups["enable_gqa"] = True
        elif shared > 1:
            # Before torch 2.12 it wants keys and values for each head of the query.
            key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
        out = kernel(
            query,
            key,
            value,
            packed.bounds,
            packed.bounds,
            packed.longest,
            packed.longest,
            scale=scaling,
            window_size=(-1 if window is None else window - 1, 0),
            **groups,
        )
    else:
        out = _on_padded_rows(query, key, value, packed, scaling, window)
    return out.unsqueeze(0), None


def _varlen_kernel(query: Tensor) -> Any:
    """Return the kernel of torch for sequences of various lengths; None if it has none for this."""
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if {"scale", "window_size"} <= _arguments(varlen_attn) else None


@cache
def _arguments(kernel: Any) -> frozenset[str]:
    """Return the names of what a kernel can be told; they differ between versions of torch."""
    return frozenset(inspect.signature(kernel).parameters)


def _on_padded_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: PackedRow,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Compute `[N, heads, D]` from the same by way of `[n, heads, longest, D]`."""

    def rows(x: Tensor) -> Tensor:
        x = x if packed.to_rows is None else x.index_select(0, packed.to_rows)
        return x.unflatten(0, (packed.count, packed.longest)).transpose(1, 2)

    mask = None
    if window is not None:
        place = torch.arange(packed.longest, device=query.device)
        back = place.unsqueeze(1) - place
        mask = (back >= 0) & (back < window)
    out = functional.scaled_dot_product_attention(
        rows(query),
        rows(key),
        rows(value),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    flat = out.transpose(1, 2).flatten(0, 1)
    return flat if packed.from_rows is None else flat.index_select(0, packed.from_rows)
