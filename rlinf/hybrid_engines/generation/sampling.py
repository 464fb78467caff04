"""Draws tokens from logits with given noise, and says how likely each was."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 1024
"""Tokens of the second stage of a draw, at most."""


def sample(
    logits: Tensor,
    temperatures: Tensor,
    uniforms: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    greedy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the distribution function.

    A row is drawn with p = softmax(logits / temperature), cut by top-k and then by top-p: the
    first token whose cumulated probability is above the uniform number of the row.

    Args:
        logits: `[B, V]`.
        temperatures: `[B]` float32; 0 takes the likeliest token.
        uniforms: `[B]` float64 in [0, 1).
        top_k: `[B]` int64, 0 or less for all; None when no row is cut.
        top_p: `[B]` float32, 1 for all; None when no row is cut.
        greedy: Whether any temperature may be 0.

    Returns:
        Tokens `[B]` int64, and log-probabilities `[B]` float32 before the cut.
    """
    divisors = torch.where(temperatures > 0, temperatures, 1.0) if greedy else temperatures
    scaled = logits.float() / divisors[:, None]
    top = scaled.amax(-1, keepdim=True)
    weights = (scaled - top).exp_()
    tokens, total = draw(weights, uniforms)
    if top_k is not None and top_p is not None:
        tokens, _ = draw(cut(weights, top_k, top_p), uniforms)
    if greedy:
        tokens = torch.where(temperatures > 0, tokens, scaled.argmax(-1))
    chosen = (scaled.gather(-1, tokens[:, None]) - top)[:, 0]
    return tokens, (chosen - total.log()).float()


def draw(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row in proportion to its weight, in two stages: a block, then a token.

    Args:
        weights: `[B, V]` float32, at least 0 and not all 0.
        uniforms: `[B]` float64 in [0, 1).

    Returns:
        Tokens `[B]` int64, none of weight 0, and the sums of the rows `[B]` float64.
    """
    rows, vocabulary = weights.shape
    width = math.gcd(vocabulary, _BLOCK)
    if width < min(vocabulary, 64):
        width = min(_BLOCK, vocabulary)
        weights = F.pad(weights, (0, -vocabulary % width))
    blocks = weights.view(rows, -1, width)
    sums = blocks.sum(-1, dtype=torch.float64)
    ends = sums.cumsum(-1)
    total = ends[:, -1]
    target = uniforms * total
    block = (ends <= target[:, None]).sum(-1, keepdim=True).clamp_(max=ends.shape[1] - 1)
    begin = ends.gather(1, block) - sums.gather(1, block)
    inner = blocks.gather(1, block[:, :, None].expand(-1, -1, width))[:, 0]
    steps = inner.to(torch.float64).cumsum(-1)
    # The two stages add in different orders: what rounding leaves must stay inside of the block.
    rest = torch.minimum((target[:, None] - begin).clamp_(min=0), steps[:, -1:] * (1 - 2.0**-50))
    token = (steps <= rest).sum(-1).clamp_(max=width - 1)
    return block[:, 0] * width + token, total


def cut(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set the weight of tokens outside of top-k, and of top-p within it, to 0.

    Args:
        weights: `[B, V]` float32.
        top_k: `[B]` int64; 0 or less is all.
        top_p: `[B]` float32; the smallest set of likeliest tokens with this share is kept.

    Returns:
        `[B, V]`.
    """
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(weights.shape[1], device=weights.device)
    ordered = ordered.where((ranks < top_k[:, None]) | (top_k <= 0)[:, None], 0.0)
    ends = ordered.cumsum(-1, dtype=torch.float64)
    before = ends - ordered
    ordered = ordered.where(before < top_p.double()[:, None] * ends[:, -1:], 0.0)
    return torch.zeros_like(weights).scatter_(-1, order, ordered)
