"""Triton kernels beside plain torch: on a GPU for real, otherwise by Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
import torch.nn.functional as F

from rlinf.hybrid_engines.generation.hf.lean import rotate
from rlinf.hybrid_engines.generation.hf.lean import swiglu as plain_swiglu
from rlinf.hybrid_engines.generation.sampling import sample

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when Triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"

from rlinf.hybrid_engines.generation.hf import triton_kernels as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def test_norm_and_gate():
    x, weight = numbers(3, 100), numbers(100, seed=1)
    torch.testing.assert_close(
        kernels.rms_norm(x, weight, 1e-5), F.rms_norm(x, (100,), weight, 1e-5)
    )
    torch.testing.assert_close(kernels.swiglu(numbers(3, 140)), plain_swiglu(numbers(3, 140)))


@pytest.mark.parametrize("normed", [False, True])
def test_queries_are_turned_and_keys_and_values_kept(normed):
    rows, heads, kv_heads, width, capacity = 3, 6, 2, 16, 40
    qkv = numbers(rows, (heads + 2 * kv_heads) * width)
    cosine, sine = numbers(capacity, width, seed=1), numbers(capacity, width, seed=2)
    positions = torch.tensor([5, 0, 39], device=DEVICE)
    norms = (numbers(width, seed=3), numbers(width, seed=4)) if normed else None
    keys, values = torch.zeros(2, 4, kv_heads, capacity, width, device=DEVICE)
    q = kernels.turn_and_keep(qkv, cosine, sine, positions, norms, 1e-6, keys, values)
    parts = qkv.view(rows, -1, width).split((heads, kv_heads, kv_heads), 1)
    turned = []
    for index in range(2):
        part = parts[index]
        if normed:
            part = F.rms_norm(part, (width,), norms[index], 1e-6)
        turned.append(rotate(part, cosine[positions][:, None], sine[positions][:, None]))
    torch.testing.assert_close(q, turned[0])
    for row, position in enumerate(positions.tolist()):
        torch.testing.assert_close(keys[row, :, position], turned[1][row])
        torch.testing.assert_close(values[row, :, position], parts[2][row])
    assert keys.count_nonzero() == values.count_nonzero() == rows * kv_heads * width


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("heads", [2, 14])
def test_attention(heads, parts):
    rows, kv_heads, width, capacity = 4, 2, 32, 300
    q = numbers(rows, heads, width)
    keys, values = numbers(2, rows + 1, kv_heads, capacity, width, seed=1)
    # What lies behind a row's position must not matter, whatever it is.
    positions = torch.tensor([0, 63, 64, 299], device=DEVICE)
    for row, position in enumerate(positions.tolist()):
        keys[row, :, position + 1 :] = values[row, :, position + 1 :] = 1e4
    found = kernels.attend(q, keys, values, positions, parts)
    for row, position in enumerate(positions.tolist()):
        k, v = (x[row, :, : position + 1].repeat_interleave(heads // kv_heads, 0)
                for x in (keys, values))  # fmt: skip
        scores = torch.einsum("hd,htd->ht", q[row], k) * width**-0.5
        expected = torch.einsum("ht,htd->hd", scores.softmax(-1), v).flatten()
        torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("vocabulary", [50, 5000])
def test_tokens_are_those_of_plain_sampling(vocabulary):
    rows = 64
    logits = numbers(rows, vocabulary) * 3
    temperatures = torch.linspace(0.3, 2.0, rows, device=DEVICE)
    uniforms = torch.linspace(0, 1 - 2.0**-48, rows, dtype=torch.float64, device=DEVICE)
    out = torch.empty(rows, 2, dtype=torch.float64, device=DEVICE)
    kernels.draw(logits, temperatures, uniforms, out)
    tokens, logprobs = sample(logits, temperatures, uniforms, greedy=False)
    # A number that falls between two tokens may go either way by rounding.
    assert (out[:, 0].long() == tokens).float().mean() > 0.95
    same = out[:, 0].long() == tokens
    torch.testing.assert_close(out[same, 1].float(), logprobs[same], rtol=1e-5, atol=1e-5)
    expected = (logits / temperatures[:, None]).log_softmax(-1)
    own = expected.gather(1, out[:, :1].long())[:, 0]
    torch.testing.assert_close(out[:, 1].float(), own, rtol=1e-4, atol=1e-4)


def test_a_token_without_weight_is_never_drawn():
    logits = torch.full((100, 4096), float("-inf"), device=DEVICE)
    logits[:, [7, 3000]] = 0.0
    out = torch.empty(100, 2, dtype=torch.float64, device=DEVICE)
    uniforms = torch.arange(100, dtype=torch.float64, device=DEVICE) / 100
    kernels.draw(logits, torch.ones(100, device=DEVICE), uniforms, out)
    tokens = out[:, 0].tolist()
    assert tokens == [7.0] * 50 + [3000.0] * 50
