"""Logits of every way to run a model are those of transformers."""

import numpy as np
import pytest
import torch

from rlinf.hybrid_engines.generation.hf.build import build_model
from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.hybrid_engines.generation.hf.kv_cache import SdpaCache
from rlinf.hybrid_engines.generation.hf.native import NativeKernels
from rlinf.hybrid_engines.generation.noise import sample_key, uniform
from rlinf.hybrid_engines.generation.sampling import sample
from rlinf.utils.native import NoNativeKernels
from tests.unit_tests.hybrid_engines.generation.tiny import (
    LEAN_FAMILIES,
    OTHER_FAMILIES,
    VOCABULARY,
    tiny,
)

try:
    NativeKernels(16, 1)
    NATIVE = ["native"]
except NoNativeKernels as error:
    NATIVE = [pytest.param("native", marks=pytest.mark.skip(reason=str(error)))]

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


@pytest.mark.parametrize("kernels", NATIVE)
@pytest.mark.parametrize("family", [name for name in LEAN_FAMILIES if "small" not in name])
def test_compiled_kernels(family, kernels):
    compare(tiny(family), kernels)


@pytest.mark.parametrize("family", [*OTHER_FAMILIES, "qwen3"])
def test_the_forward_of_transformers(family):
    compare(tiny(family), "transformers")


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kernels", NATIVE)
def test_compiled_kernels_share_rows_among_threads(kernels, threads, request):
    before = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(threads)
    compare(tiny("qwen3"), kernels)


@pytest.mark.parametrize("kernels", [*NATIVE, "torch", "transformers"])
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


@pytest.mark.parametrize("kernels", NATIVE)
@pytest.mark.parametrize("vocabulary", [7, 48, 200, 40_001])
def test_compiled_draws_are_those_of_torch(kernels, vocabulary):
    count = 64 if vocabulary > 1000 else 4096
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 3 * torch.randn(count, vocabulary, generator=generator)
    logits[:, 0] = -torch.inf
    temperatures = torch.rand(count, generator=generator) * 2
    temperatures[::5] = 0.0
    keys = torch.tensor([sample_key(index, 3) for index in range(count)])
    counters = torch.randint(0, 1000, (count,), generator=generator)
    result = torch.empty(count, 2, dtype=torch.float64)
    NativeKernels(16, 1).draw(logits, temperatures, keys, counters, result)
    tokens, logprobs = sample(logits, temperatures, uniform(keys, counters))
    # The two add in different orders, so that one in a million draws may differ by a token.
    assert np.array_equal(result[:, 0].long(), tokens)
    torch.testing.assert_close(result[:, 1].float(), logprobs, atol=2e-6, rtol=1e-6)


def test_a_model_that_is_computed_wrongly_is_found(monkeypatch):
    def wrong(self, layer, q, k, v, step):
        return right(self, layer, q, k, v, step) * 1.01

    right = SdpaCache.decode
    monkeypatch.setattr(SdpaCache, "decode", wrong)
    with pytest.raises(ValueError, match=r"Qwen3ForCausalLM: logits .* differ by"):
        built(tiny(), "torch")


def test_a_window_shorter_than_a_sequence_is_refused():
    with pytest.raises(ValueError, match=r"DynamicSlidingWindowLayer of 12 tokens.* use vllm"):
        built(tiny("qwen2 with a window", sliding_window=12), "auto", tokens=64)


@pytest.mark.parametrize(
    ("family", "kernels", "why"),
    [
        ("gpt2", "native", "model_type is 'gpt2'"),
        ("llama with small heads", "native", "heads have 8 numbers"),
        ("qwen3", "flash", "the device is not CUDA"),
        ("qwen3", "fast", "auto, native, triton, flash, torch, transformers are allowed"),
    ],
)
def test_kernels_that_cannot_run_a_model_say_why(family, kernels, why):
    with pytest.raises(ValueError, match=why):
        built(tiny(family), kernels)


def test_without_a_compiler_torch_takes_over_and_says_so(monkeypatch, caplog):
    from rlinf.utils import native

    monkeypatch.setenv("CC", "/no/such/compiler")
    native.compiled.cache_clear()
    try:
        engine = HFEngine(tiny(), max_length=32, max_running=2)
    finally:
        native.compiled.cache_clear()
    assert engine.path == "torch"
    assert "no C compiler was found: install gcc, or set CC" in caplog.text
