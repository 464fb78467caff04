"""Log-probabilities of tokens from hidden states, without the logits of all tokens at once.

The logits of a batch are often greater than all else: a vocabulary has 150,000 entries. They are
computed for some tokens at a time, in the forward pass and again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlinf.models.causal_lm.logit_kernels import kernels_for

CHUNK_ELEMENTS = {"cpu": 1 << 24, "cuda": 1 << 27}
"""Logits that exist at a time, at least, where nobody says how many tokens."""
_CHUNK_SHARE = 1 / 64
"""Of a GPU's memory for the logits of a chunk: fewer chunks are fewer sums of weights."""
_WIDE_RESULTS = "out_dtype" in (torch.mm.__doc__ or "")
"""Whether a product of 16-bit factors can be had in float32."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    compute_entropy: bool = False,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of target tokens, and entropies of their distributions.

    With z = (W h + b) / T: log p = z_target − log Σ exp z,  H = log Σ exp z − Σ p z. All sums are
    in float32, whatever the format of the products.

    Args:
        hidden: h, one per token, `[R, H]`.
        weight: W, `[V, H]`.
        targets: int64 `[R]`.
        bias: b, `[V]`; None is none.
        temperature: T.
        compute_entropy: Whether to return entropies.
        chunk_tokens: Tokens whose logits exist at a time; None picks by memory.

    Returns:
        Log-probabilities and entropies (or None), float32 `[R]` (float64 if `hidden` is), with
        gradients in `hidden`, `weight` and `bias`.
    """
    dtype = hidden.dtype
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
    if chunk_tokens is None:
        chunk_tokens = max(1, _chunk_elements(hidden.device) // len(weight))
    logprobs, entropy = _TokenLogProbs.apply(
        hidden, weight, bias, targets, float(temperature), compute_entropy, chunk_tokens, dtype
    )
    return logprobs, entropy if compute_entropy else None


class _TokenLogProbs(torch.autograd.Function):
    """See `token_logprobs`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        compute_entropy: bool,
        chunk: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        used = weight.to(dtype)
        logprobs = hidden.new_empty(len(hidden), dtype=_sums_in(dtype))
        entropy = torch.empty_like(logprobs if compute_entropy else logprobs[:0])
        total = torch.empty_like(logprobs)
        kept = None
        for part in _parts(len(hidden), chunk):
            logits = _logits(hidden[part], used, bias, temperature, dtype)
            quick = kernels_for(logits)
            total[part] = logits.logsumexp(-1) if quick is None else quick.log_sums(logits)
            picked = logits.gather(1, targets[part, None]).squeeze(1)
            logprobs[part] = picked - total[part]
            # Few tokens, or a small vocabulary: what fits is kept, and not computed again.
            kept = logits if len(hidden) <= chunk else None
            if compute_entropy:
                p = (logits - total[part, None]).exp_()
                entropy[part] = total[part] - p.mul_(logits).sum(-1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets, total, entropy, kept)
        ctx.temperature, ctx.chunk, ctx.dtype = temperature, chunk, dtype
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, of_logprobs: Tensor | None, of_entropy: Tensor | None) -> tuple:
        hidden, weight, bias, targets, total, entropy, kept = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        used = weight.to(ctx.dtype)
        to_hidden = torch.empty_like(hidden) if wants_hidden else None
        sums = _sums_in(ctx.dtype)
        to_weight = torch.zeros_like(weight, dtype=sums) if wants_weight else None
        to_bias = torch.zeros_like(bias, dtype=sums) if wants_bias else None
        for part in _parts(len(hidden), ctx.chunk):
            logits = kept
            if logits is None:
                logits = _logits(hidden[part], used, bias, ctx.temperature, ctx.dtype)
            quick = None if wants_bias or of_entropy is not None else kernels_for(logits)
            own = None if of_logprobs is None else of_logprobs[part] / ctx.temperature
            if own is not None and quick is not None:
                grad = quick.gradients(logits, total[part], targets[part], own, ctx.dtype)
            else:
                of_part = None if of_entropy is None else of_entropy[part] / ctx.temperature
                # What is kept may be asked for once more.
                logp = torch.sub(logits, total[part, None], out=None if kept is logits else logits)
                grad = _gradients(logp, targets[part], own, of_part, entropy[part])
            if wants_bias:
                to_bias += grad.sum(0)
            grad = grad.to(ctx.dtype)
            if wants_hidden:
                to_hidden[part] = grad @ used
            if wants_weight:
                to_weight += _matmul(grad.T, hidden[part].to(ctx.dtype))
        if wants_weight:
            to_weight = to_weight.to(weight.dtype)
        if wants_bias:
            to_bias = to_bias.to(bias.dtype)
        return to_hidden, to_weight, to_bias, None, None, None, None, None


def _gradients(
    logp: Tensor,
    targets: Tensor,
    of_logprobs: Tensor | None,
    of_entropy: Tensor | None,
    entropy: Tensor,
) -> Tensor:
    """Return the gradient in the logits, `[R, V]`; overwrites `logp`."""
    if of_entropy is None:
        if of_logprobs is None:
            return logp.zero_()
        # d log p_target / dz = 1[target] - p
        grad = logp.exp_().mul_(-of_logprobs[:, None])
    else:
        p = logp.exp()
        # dH/dz = -p (log p + H)
        grad = logp.add_(entropy[:, None]).mul_(p).mul_(-of_entropy[:, None])
        if of_logprobs is not None:
            grad.sub_(p.mul_(of_logprobs[:, None]))
    if of_logprobs is not None:
        grad[torch.arange(len(grad), device=grad.device), targets] += of_logprobs
    return grad


def _chunk_elements(device: torch.device) -> int:
    """Return the logits that may exist at a time."""
    least = CHUNK_ELEMENTS.get(device.type, CHUNK_ELEMENTS["cuda"])
    if device.type != "cuda":
        return least
    memory = torch.cuda.get_device_properties(device).total_memory
    return max(least, int(memory * _CHUNK_SHARE) // 4)


def _parts(count: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, count, chunk)]


def _logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, dtype: torch.dtype
) -> Tensor:
    logits = _matmul(hidden.to(dtype), weight.T)
    if bias is not None:
        logits += bias
    return logits if temperature == 1.0 else logits.div_(temperature)


def _matmul(one: Tensor, other: Tensor) -> Tensor:
    """Multiply in the format of the factors and return float32, or float64 for float64."""
    with torch.autocast(one.device.type, enabled=False):
        if _WIDE_RESULTS and one.is_cuda and one.dtype in (torch.bfloat16, torch.float16):
            # Logits of 20 have steps of an eighth in bf16: sums must not be rounded to that.
            return torch.mm(one, other, out_dtype=torch.float32)
        return (one @ other).to(_sums_in(one.dtype))


def _sums_in(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype is torch.float64 else torch.float32
