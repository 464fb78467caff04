"""Blocks that Triton kernels look up: what is generated is that of contiguous rows."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when Triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"

from rlinf.hybrid_engines.generation import GenerationRequest, SamplingParams
from rlinf.hybrid_engines.generation.hf import device_block_cache
from rlinf.hybrid_engines.generation.hf import triton_kernels as kernels
from rlinf.hybrid_engines.generation.hf.block_cache import BlockCache
from rlinf.hybrid_engines.generation.hf.device_block_cache import DeviceBlockCache
from rlinf.hybrid_engines.generation.hf.engine import HFEngine, Launch
from rlinf.hybrid_engines.generation.hf.kv_cache import CacheShape, Decode
from rlinf.hybrid_engines.generation.hf.triton_model import TritonModel
from tests.unit_tests.hybrid_engines.generation.hf.test_paged_engine import (
    by_sample,
    check,
    ran,
    same,
    tables,
)
from tests.unit_tests.hybrid_engines.generation.tiny import tiny

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float32
LENGTH = 79


class LateEngine(HFEngine):
    """As on a GPU: reads the tokens of a step when the next one was asked for."""

    def __init__(self, model, **keys):
        defaults = {"max_length": LENGTH, "max_running": 8, "kernels": "triton", "paged": False}
        super().__init__(model, device=DEVICE, dtype=DTYPE, **{**defaults, **keys})
        self._behind, self._table._few_sizes = 1, True

    def _launch(self, lanes, result):
        if self._on_cuda:
            super()._launch(lanes, result)
        else:
            self._launches.append(Launch(lanes, result.clone()))


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    if DEVICE.type == "cpu":
        monkeypatch.setattr(TritonModel, "why_not", staticmethod(lambda *_: None))


@pytest.fixture
def small(monkeypatch):
    """Blocks of 16 tokens, of which each is a chunk, and as many keys at a time."""
    monkeypatch.setattr(BlockCache, "block", 16)
    monkeypatch.setattr(kernels, "_KEYS", 16)
    monkeypatch.setattr(device_block_cache, "CHUNK_BYTES", 1)


def request(name, prompt, new, n=1, **keys):
    params = SamplingParams(max_new_tokens=new, ignore_eos=True, seed=7, **keys)
    return GenerationRequest(name, prompt, params, n)


def exactly(ours, reference):
    ours, reference = by_sample(ours), by_sample(reference)
    assert ours.keys() == reference.keys() and ours
    for key, result in ours.items():
        assert result.token_ids == reference[key].token_ids
        assert result.logprobs == reference[key].logprobs
        assert result.finish_reason == reference[key].finish_reason


def scattered(rows, per_row, kv_heads, block, width, seed):
    """Random keys and values in rows, and in blocks out of order; the table of the latter."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(2, rows, kv_heads, per_row * block, width, generator=generator).to(DEVICE)
    order = torch.randperm(rows * per_row, generator=generator).to(DEVICE)
    blocks = torch.empty(2, rows * per_row, kv_heads, block, width, device=DEVICE)
    split = whole.unflatten(3, (per_row, block)).transpose(2, 3).flatten(1, 2)
    blocks[:, order] = split
    step = kv_heads * block * width // kernels.UNIT
    return whole, blocks, order.view(rows, per_row) * step


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("block", [64, 128])
def test_attention_is_the_same_to_the_last_bit(block, parts):
    rows, heads, kv_heads, width = 4, 6, 2, 32
    per_row = 256 // block
    (keys, values), blocks, table = scattered(rows, per_row, kv_heads, block, width, 0)
    q = torch.randn(rows, heads, width, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    positions = torch.tensor([0, 63, 64, 255], device=DEVICE)
    expected = kernels.attend(q, keys, values, positions, parts)
    found = kernels.attend(q, *blocks, positions, parts, table)
    assert torch.equal(found, expected)


def test_keys_and_values_go_to_their_blocks():
    rows, heads, kv_heads, width, block = 3, 4, 2, 16, 16
    (keys, values), blocks, table = scattered(rows, 3, kv_heads, block, width, 2)
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * width, device=DEVICE)
    cosine, sine = torch.randn(2, 48, width, device=DEVICE)
    positions = torch.tensor([5, 16, 47], device=DEVICE)
    same_for_both = (qkv, cosine, sine, positions, None, 1e-6)
    expected = kernels.turn_and_keep(*same_for_both, keys, values)
    assert torch.equal(kernels.turn_and_keep(*same_for_both, *blocks, table), expected)
    for found, whole in zip(kernels.read_blocks(table, *blocks), (keys, values), strict=True):
        assert torch.equal(found, whole)


def test_blocks_of_several_chunks(small):
    """A row goes on from one chunk to the next, and what is read is what was written."""
    shape = CacheShape(layers=2, slots=3, kv_heads=2, group=1, head_dim=16, capacity=48)
    cache = DeviceBlockCache(shape, DEVICE, torch.float32)
    cache.allocate()
    before = cache.nbytes
    prefix = list(range(40))
    assert cache.claim(prefix, [0, 2]) and cache.claim(prefix[:9], [1])
    assert cache.nbytes > before and len(cache._chunks) == cache.tables.pool.count
    batch = cache.plan([prefix, prefix[:9]], [[0, 2], [1]])
    k, v = torch.randn(2, 80, 2, 16, device=DEVICE)
    for layer in range(2):
        cache._keep(layer, k + layer, v - layer, batch)
    assert cache.extend(np.array([40, 9, 40]))
    for layer in range(2):
        keys, values = cache._read(layer, cache.table)
        for row, (begin, size) in enumerate(((0, 40), (40, 9), (0, 40))):
            mine = slice(begin, begin + size)
            assert torch.equal(keys[row, :, :size], (k + layer)[mine].transpose(0, 1))
            assert torch.equal(values[row, :, :size], (v - layer)[mine].transpose(0, 1))
    q, k, v = torch.randn(3, 3, 2, 16, device=DEVICE)
    step = Decode(torch.tensor([40, 9, 40], device=DEVICE), 48)
    found = cache.decode(1, q, k, v, step).view(3, 2, 16)
    keys, values = cache._read(1, cache.table)
    for row, length in enumerate((41, 10, 41)):
        seen, mixed = keys[row, :, :length], values[row, :, :length]
        weights = (torch.einsum("hd,htd->ht", q[row], seen) / 4).softmax(-1)
        expected = torch.einsum("ht,htd->hd", weights, mixed)
        torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("reuse", [True, False])
def test_results_are_those_of_contiguous_rows(small, reuse):
    """Samples share blocks, rows end at different times, get blocks and move."""
    model, prompt = tiny("qwen3"), list(range(2, 36))
    requests = [
        request("group", prompt, 3, 2),
        request("greedy", [5, 6, 7], 6, temperature=0.0),
        request("next", [9] * 14, 4),
    ]
    whole, paged = LateEngine(model), LateEngine(model, paged=True, reuse_prefixes=reuse)
    reference = whole.generate(requests)
    exactly(ran(paged, requests), reference)
    assert paged.path == "triton" and paged.stats()["preempted"] == 0
    assert paged.stats()["cache_bytes"] < whole.stats()["cache_bytes"]
    # What was read is there, and seen from behind it.
    longer = [request("again", [*prompt, 3, 4], 3, 2)]
    same(ran(paged, longer), whole.generate(longer))
    assert paged.stats()["reused_tokens"] == (32 if reuse else 0)


def test_responses_that_no_block_is_left_for_wait(small):
    model = tiny()
    requests = [request(index, [3 + index] * 14, 20) for index in range(2)]
    reference = LateEngine(model).generate(requests)
    crowded = LateEngine(model, paged=True, max_cache_tokens=80)
    same(ran(crowded, requests), reference)
    assert crowded.stats()["preempted"] == 1
    assert tables(crowded).pool.count == 6


def test_a_device_without_memory_is_a_smaller_cache(small, monkeypatch, caplog):
    model = tiny()
    requests = [request(index, [3 + index] * 14, 5) for index in range(3)]
    reference = LateEngine(model).generate(requests)
    paged = LateEngine(model, paged=True)
    assert tables(paged).pool.count == 6

    def full(self):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(DeviceBlockCache, "_take_chunk", full)
    same(ran(paged, requests), reference)
    assert tables(paged).pool.count == 6
    assert "no memory for more than 96 tokens" in caplog.text


def test_sleep_gives_all_memory_back(small):
    paged, asked = LateEngine(tiny(), paged=True), [request("x", list(range(2, 36)), 4, 3)]
    expected = paged.generate(asked)
    taken = paged.stats()["cache_bytes"]
    paged.sleep()
    assert paged.stats()["cache_bytes"] == 0
    paged.wake()
    assert 0 < paged.stats()["cache_bytes"] < taken
    exactly(paged.generate(asked), expected)
    check(paged)


def test_aborted_rows_do_not_touch_blocks_of_others(small):
    """A row that was left goes on for a step, and must not write into blocks that others got."""
    model = tiny()
    found = []
    for keys in ({"paged": True}, {}):
        running, results = LateEngine(model, **keys), []
        running.submit([request(index, [3 + index] * 13, 8) for index in range(3)])
        for _ in range(3):
            results += running.step()
        running.abort({0, 1})
        running.submit([request(9, [9] * 14, 5)])
        while running.unfinished:
            results += running.step()
        found.append(results)
    exactly(*found)
