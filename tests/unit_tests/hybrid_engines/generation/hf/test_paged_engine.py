"""A paged cache changes the memory that is taken, and nothing of what is generated."""

import random
from collections import Counter

import numpy as np
import pytest
import torch

from rlinf.hybrid_engines.generation import GenerationRequest, SamplingParams
from rlinf.hybrid_engines.generation.hf.block_cache import BlockCache
from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.hybrid_engines.generation.hf.paged_cache import _readers
from tests.long_tests import ALL_TESTS
from tests.unit_tests.hybrid_engines.generation.tiny import LEAN_FAMILIES, VOCABULARY, tiny

LENGTH = 95
"""With the token more that a row has room for, a multiple of all sizes of blocks."""


@pytest.fixture(params=[4, 16])
def block(request, monkeypatch):
    monkeypatch.setattr(BlockCache, "block", request.param)
    return request.param


def engine(model=None, **keys):
    defaults = {"max_length": LENGTH, "max_running": 8, "paged": True}
    return HFEngine(model or tiny(), **{**defaults, **keys})


def asked(count, seed, groups=4, alike=True):
    """Requests of random lengths, some with a beginning in common, cuts, stops and temperatures."""
    generator = random.Random(seed)
    common = [generator.randrange(2, VOCABULARY) for _ in range(40)]
    requests = []
    for index in range(count):
        prompt = [generator.randrange(2, VOCABULARY) for _ in range(generator.randint(1, 20))]
        if alike and generator.random() < 0.6:
            prompt = common[: generator.randint(1, 40)] + prompt[: generator.randint(0, 20)]
        params = SamplingParams(
            max_new_tokens=generator.randint(1, 30),
            temperature=generator.choice([1.0, 0.7, 0.0]),
            top_k=generator.choice([-1, 10]),
            seed=generator.randrange(1000),
            ignore_eos=generator.random() < 0.5,
            stop_token_ids=generator.choice([(), (5, 6, 7)]),
        )
        n = generator.randint(1, groups)
        requests.append(GenerationRequest((seed, index), prompt, params, n))
    return requests


def by_sample(results):
    return {(result.request_id, result.sample_index): result for result in results}


def same(ours, reference):
    """Compare results in whatever order they come."""
    ours, reference = by_sample(ours), by_sample(reference)
    assert ours.keys() == reference.keys() and ours
    for key, result in ours.items():
        other = reference[key]
        assert result.token_ids == other.token_ids
        assert result.finish_reason == other.finish_reason
        assert result.versions == other.versions
        np.testing.assert_allclose(result.logprobs, other.logprobs, atol=2e-5)


def tables(running):
    return running._decoder._cache.tables


def check(running):
    """Every block has as many users as rows have it, and there are no others."""
    pool, own = tables(running).pool, tables(running)
    users = Counter()
    for response in running._table:
        assert own.taken[response.row]
        users.update(own.table[response.row, : own.counts[response.row]].tolist())
    assert np.count_nonzero(own.taken) == running._table.running
    assert all(pool.users(number) == users[number] for number in range(1, pool.count))
    assert pool.used == len(users) and pool.used + pool.available == pool.count - 1


def ran(running, requests, checked=True):
    """Serve requests, looking at the blocks after every step."""
    running.submit(requests)
    results = []
    while running.unfinished:
        results += running.step()
        if checked:
            check(running)
    assert tables(running).pool.used == 0
    return results


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("seed", range(3 if ALL_TESTS else 1))
def test_random_requests(block, seed, reuse):
    model, requests = tiny(), asked(14, seed)
    reference = engine(model, paged=False).generate(requests)
    paged = engine(model, reuse_prefixes=reuse)
    same(ran(paged, requests), reference)
    read = paged.stats()["prompt_tokens"]
    # Once more: what was read is there.
    again = [
        GenerationRequest((i, "again"), r.prompt_ids, r.params, r.n) for i, r in enumerate(requests)
    ]
    repeated = by_sample(ran(paged, again))
    expected = by_sample(reference)
    for index, request in enumerate(requests):
        for sample in range(request.n):
            ours = repeated[(index, "again"), sample]
            other = expected[request.request_id, sample]
            assert ours.token_ids == other.token_ids
            np.testing.assert_allclose(ours.logprobs, other.logprobs, atol=2e-5)
    stats = paged.stats()
    assert (stats["reused_tokens"] > 0) == reuse
    if reuse:
        assert stats["prompt_tokens"] - read < read
    assert stats["preempted"] == 0


@pytest.mark.parametrize("family", LEAN_FAMILIES)
def test_all_families(family, monkeypatch):
    monkeypatch.setattr(BlockCache, "block", 4)
    model, requests = tiny(family), asked(6, 11)
    reference = engine(model, paged=False).generate(requests)
    same(engine(model).generate(requests), reference)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("seed", range(3 if ALL_TESTS else 1))
def test_responses_that_no_block_is_left_for_wait(block, seed, reuse):
    model, requests = tiny(), asked(12, 20 + seed)
    reference = engine(model, paged=False).generate(requests)
    # Room for one sequence of full length and a bit.
    small = engine(model, max_cache_tokens=LENGTH + 1 + block, reuse_prefixes=reuse)
    same(ran(small, requests), reference)
    assert small.stats()["preempted"] > 0 or block > 4
    assert small.stats()["cache_bytes"] <= tables(small).pool.count * _bytes_per_block(small)
    assert tables(small).pool.count == (LENGTH + 1 + block) // block + 1


def _bytes_per_block(running):
    cache = running._decoder._cache
    return cache.nbytes // cache.keys[0].shape[0]


def test_one_sequence_fills_the_whole_cache(block):
    model = tiny()
    params = SamplingParams(seed=3, ignore_eos=True)
    requests = [GenerationRequest(index, [5, 6, 7 + index], params, 2) for index in range(3)]
    reference = engine(model, paged=False).generate(requests)
    small = engine(model, max_cache_tokens=LENGTH + 1)
    same(ran(small, requests), reference)
    with pytest.raises(ValueError, match=f"max_cache_tokens is {LENGTH}: a sequence of 96 tokens"):
        engine(model, max_cache_tokens=LENGTH)


@pytest.mark.parametrize("most", [None, 160])
@pytest.mark.parametrize("seed", range(4 if ALL_TESTS else 2))
def test_random_aborts_and_updates(block, seed, most):
    """The same calls to both, after the same tokens of all: with recompute, and carried on."""
    generator = random.Random(seed)
    weights = [tiny(seed=version).state_dict() for version in range(3)]
    paged, reference = engine(tiny(), max_cache_tokens=most), engine(tiny(), paged=False)
    requests = asked(10, 40 + seed)
    mine, theirs = [], []
    for version in (1, 2):
        for running, results in ((paged, mine), (reference, theirs)):
            if version == 1:
                running.submit(requests)
            # Who waits for blocks is behind, so both are brought to an end of some responses.
            for _ in range(3):
                results += running.step()
        chosen = {request.request_id for request in requests if generator.random() < 0.4}
        for running, results in ((paged, mine), (reference, theirs)):
            known = chosen & running._known.keys()
            aborted = running.abort(known) if known else []
            results += [result for result in aborted if result.finish_reason != "abort"]
            carried = [r.carry_on(aborted) for r in requests if r.request_id in known]
            running.submit([request for request in carried if request])
            if most is None:
                running.update_weights(weights[version], version, recompute=True)
        check(paged)
    for running, results in ((paged, mine), (reference, theirs)):
        while running.unfinished:
            results += running.step()
    same(mine, theirs)
    assert tables(paged).pool.used == 0
    assert (most is None) == any(len(set(result.versions)) > 1 for result in mine)


def test_nothing_of_old_weights_is_used_again(block):
    request = GenerationRequest(
        "x", list(range(2, 40)), SamplingParams(max_new_tokens=9, seed=1), 2
    )
    running = engine(tiny())
    running.generate([request])
    new = tiny(seed=1)
    running.update_weights(new.state_dict(), 0)
    assert tables(running).pool.kept == 0
    results = running.generate([request])
    assert running.stats()["reused_tokens"] == 0
    same(results, engine(new, paged=False).generate([request]))
    running.model.load_state_dict(tiny().state_dict())
    running.weights_changed(0)
    same(running.generate([request]), engine(tiny(), paged=False).generate([request]))
    assert running.stats()["reused_tokens"] == 0
    running.generate([request])
    assert running.stats()["reused_tokens"] > 0


def test_sleep_gives_all_memory_back(block):
    running, requests = engine(), asked(8, 60)
    expected = running.generate(requests)
    taken = running.stats()["cache_bytes"]
    running.sleep()
    assert running.stats()["cache_bytes"] == tables(running).pool.kept == 0
    running.wake()
    assert running.stats()["cache_bytes"] == taken
    before = running.stats()["reused_tokens"]
    same(ran(running, requests), expected)
    first = engine()
    first.generate(requests)
    assert running.stats()["reused_tokens"] - before == first.stats()["reused_tokens"]


def test_memory_follows_the_contexts(monkeypatch):
    monkeypatch.setattr(BlockCache, "block", 4)
    model = tiny()
    keys = {"max_length": 239, "max_running": 64}
    paged, whole = engine(model, **keys), engine(model, paged=False, **keys)
    params = SamplingParams(max_new_tokens=8, ignore_eos=True, seed=0)
    requests = [GenerationRequest(i, [i + 2] * 40, params, 16) for i in range(4)]
    same(paged.generate(requests), whole.generate(requests))
    # 10 blocks of each prompt once, and 2 of each response; it grows by half at a time.
    blocks = 4 * 10 + 64 * 2 + 1
    full = whole.stats()["cache_bytes"] / (64 * 60)
    assert blocks * full <= paged.stats()["cache_bytes"] <= 1.5 * blocks * full + 2 * full
    assert paged.stats()["cache_bytes"] < whole.stats()["cache_bytes"] / 10


@torch.no_grad()
def test_a_pool_that_is_mostly_empty_is_not_looked_at():
    """A single response left of many: its blocks are copied rather than all multiplied."""
    block = np.array([50, 3])
    readers, part = _readers(block, np.array([0, 0]), np.array([64, 10]), 64)
    assert readers[0].blocks.tolist() == [0, 50, 3] and part.tolist() == [1, 2]
    block = np.array([1, 2, 3, 1])
    readers, part = _readers(block, np.array([0, 0, 1, 1]), np.array([64, 10, 9, 64]), 64)
    assert readers[0].blocks is None and readers[0].rows.tolist() == [0, 0, 0, 1]
    assert readers[1].blocks.tolist() == [1] and readers[1].rows.tolist() == [0, 1]
    assert part.tolist() == [4, 2, 3, 5]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kernels": "transformers", "paged": True}, "transformers on cpu has not"),
        (
            {"paged": False, "max_cache_tokens": 500},
            "max_cache_tokens is 500: it is for a paged cache",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        engine(**keys)
