"""Logits of every way to run a model are those of transformers."""

import pytest
import torch

from rlinf.hybrid_engines.generation.hf import build
from rlinf.hybrid_engines.generation.hf.build import build_model
from rlinf.hybrid_engines.generation.hf.kv_cache import BmmCache, SdpaCache
from tests.unit_tests.hybrid_engines.generation.tiny import (
    LEAN_FAMILIES,
    OTHER_FAMILIES,
    VOCABULARY,
    tiny,
)

LENGTHS = [5, 1, 37, 18]
STEPS = 20


def built(model, kernels, slots=6, tokens=64):
    return build_model(
        model,
        slots=slots,
        tokens=tokens,
        device=torch.device("cpu"),
        dtype=torch.float32,
        kernels=kernels,
    )


@torch.no_grad()
def compare(model, kernels):
    """Reads sequences of several lengths, goes on token by token, and compares all logits."""
    generator = torch.Generator().manual_seed(5)
    tokens = [
        torch.randint(0, VOCABULARY, (length + STEPS,), generator=generator) for length in LENGTHS
    ]
    expected = [model(input_ids=row[None], use_cache=False).logits[0] for row in tokens]
    decoder = built(model, kernels)
    assert decoder.path == kernels
    prefixes = [row[:length].tolist() for row, length in zip(tokens, LENGTHS, strict=True)]
    # The last sequence goes to two rows; row 1 is that of nobody.
    logits = decoder.prefill(prefixes, [[0], [2], [3], [5, 4]])
    rows = torch.tensor([0, 3, 1, 2, 3, 3])
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(logits[row], expected[row][length - 1], atol=1e-5, rtol=1e-5)
    places = torch.tensor(LENGTHS)[rows]
    places[1] = 0
    for _ in range(STEPS):
        new = torch.stack([tokens[row][place] for row, place in zip(rows, places, strict=True)])
        span = int(places.max()) + 1
        logits = decoder.decode(new, places, min(span + -span % 16, decoder.capacity))
        for i, (row, place) in enumerate(zip(rows.tolist(), places.tolist(), strict=True)):
            if i != 1:
                torch.testing.assert_close(logits[i], expected[row][place], atol=1e-5, rtol=1e-5)
        places = places + 1
        places[1] = 0


@pytest.mark.parametrize("family", LEAN_FAMILIES)
def test_torch_operations(family):
    compare(tiny(family), "torch")


@pytest.mark.parametrize("family", LEAN_FAMILIES)
def test_torch_operations_of_other_devices(family, monkeypatch):
    monkeypatch.setattr(build, "BmmCache", SdpaCache)
    compare(tiny(family), "torch")


@pytest.mark.parametrize("family", [*OTHER_FAMILIES, "qwen3"])
def test_the_forward_of_transformers(family):
    compare(tiny(family), "transformers")


@pytest.mark.parametrize("kernels", ["torch", "transformers"])
def test_rows_can_move(kernels):
    model = tiny()
    decoder = built(model, kernels)
    prompts = [[3, 4, 5], [6, 7, 8, 9, 10]]
    with torch.no_grad():
        decoder.prefill(prompts, [[3], [5]])
        decoder.move([3, 5], [1, 0], 5)
        logits = decoder.decode(torch.tensor([11, 12]), torch.tensor([5, 3]), 16)
        for row, tokens in enumerate([[*prompts[1], 11], [*prompts[0], 12]]):
            expected = model(input_ids=torch.tensor([tokens])).logits[0, -1]
            torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=1e-5)


def test_a_model_that_is_computed_wrongly_is_found(monkeypatch):
    def wrong(self, layer, q, k, v, step):
        return right(self, layer, q, k, v, step) * 1.01

    right = BmmCache.decode
    monkeypatch.setattr(BmmCache, "decode", wrong)
    with pytest.raises(ValueError, match=r"Qwen3ForCausalLM: logits .* differ by"):
        built(tiny(), "torch")


def test_a_window_shorter_than_a_sequence_is_refused():
    with pytest.raises(ValueError, match=r"DynamicSlidingWindowLayer of 12 tokens.* use vllm"):
        built(tiny("qwen2 with a window", sliding_window=12), "auto", tokens=64)


@pytest.mark.parametrize(
    ("family", "kernels", "why"),
    [
        ("gpt2", "torch", "model_type is 'gpt2'"),
        ("qwen3", "flash", "the device is not CUDA"),
        ("qwen3", "fast", "auto, triton, flash, torch, transformers are allowed"),
    ],
)
def test_kernels_that_cannot_run_a_model_say_why(family, kernels, why):
    with pytest.raises(ValueError, match=why):
        built(tiny(family), kernels)
