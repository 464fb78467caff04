"""The engine makes what was asked for, whoever shares the batch, and says how likely it was."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationRequest,
    SamplingParams,
    build_engine,
)
from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch
from tests.unit_tests.hybrid_engines.generation.tiny import (
    EOS,
    VOCABULARY,
    chi_square_limit,
    logprobs,
    tiny,
)

LENGTH = 96


def engine(model=None, **keys):
    return HFEngine(model or tiny(), **{"max_length": LENGTH, "max_running": 8, **keys})


def prompts(count, seed=0, shortest=1, longest=20):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(shortest, longest + 1, count)
    return [generator.integers(2, VOCABULARY, size).tolist() for size in sizes]


def requests(count=5, n=1, seed=0, **params):
    settings = {"max_new_tokens": 24, **params}
    return [
        GenerationRequest(index, prompt, SamplingParams(seed=1000 + index, **settings), n)
        for index, prompt in enumerate(prompts(count, seed))
    ]


def tokens(results):
    return {(result.request_id, result.sample_index): result.token_ids for result in results}


# -- what is made ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["torch", "transformers"])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_those_of_a_plain_forward(kernels, temperature):
    model = tiny()
    asked = requests(6, n=3, temperature=temperature, top_k=20, top_p=0.95)
    results = engine(model, kernels=kernels).generate(asked)
    assert [(r.request_id, r.sample_index) for r in results] == [
        (request, sample) for request in range(6) for sample in range(3)
    ]
    for result in results:
        exact = logprobs(model, asked[result.request_id].prompt_ids, result.token_ids, temperature)
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-5)
        assert result.versions == [0] * len(result.token_ids)


def test_the_distribution_is_that_of_the_model():
    model = tiny()
    samples = 4096
    params = SamplingParams(max_new_tokens=2, temperature=0.8, ignore_eos=True, seed=7)
    request = GenerationRequest("x", [5, 9, 4], params, samples)
    results = engine(model, max_running=256).generate([request])
    first = np.bincount([r.token_ids[0] for r in results], minlength=VOCABULARY)
    likeliest = int(first.argmax())
    second = [r.token_ids[1] for r in results if r.token_ids[0] == likeliest]
    for prefix, counts in (
        ([5, 9, 4], first),
        ([5, 9, 4, likeliest], np.bincount(second, minlength=VOCABULARY)),
    ):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prefix])).logits[0, -1].double()
        expected = (logits / 0.8).softmax(-1).numpy() * counts.sum()
        rare = expected < 5
        if rare.any():
            expected = np.append(expected[~rare], expected[rare].sum())
            counts = np.append(counts[~rare], counts[rare].sum())
        statistic = ((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
        assert statistic < chi_square_limit(len(expected) - 1)


def test_the_likeliest_tokens_are_those_of_transformers():
    model = tiny()
    asked = requests(4, temperature=0.0, ignore_eos=True)
    results = engine(model).generate(asked)
    for request, result in zip(asked, results, strict=True):
        context = list(request.prompt_ids)
        for token in result.token_ids:
            with torch.no_grad():
                assert model(input_ids=torch.tensor([context])).logits[0, -1].argmax() == token
            context.append(token)


# -- whoever shares the batch ----------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["torch", "transformers"])
def test_a_request_gives_the_same_in_any_batch(kernels):
    model = tiny()
    asked = requests(7, n=3)
    together = engine(model, kernels=kernels, max_running=32).generate(asked)
    squeezed = engine(model, kernels=kernels, max_running=3).generate(asked[::-1])
    alone = engine(model, kernels=kernels).generate(asked[4:5])
    assert tokens(squeezed) == tokens(together)
    assert tokens(alone).items() <= tokens(together).items()
    for one, other in zip(alone, [r for r in together if r.request_id == 4], strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_requests_may_come_while_others_run():
    model = tiny()
    asked = requests(9, n=2, ignore_eos=True)
    expected = tokens(engine(model).generate(asked))
    running = engine(model)
    results = []
    for request in asked:
        running.submit([request])
        for _ in range(3):
            results += running.step()
    while running.unfinished:
        results += running.step()
    assert tokens(results) == expected
    assert running.step() == []


def test_a_group_shares_its_prompt():
    model = tiny()
    shared = engine(model, max_running=16)
    asked = requests(3, n=4)
    grouped = shared.generate(asked)
    size = sum(len(request.prompt_ids) for request in asked)
    assert shared.stats()["prompt_tokens"] == size
    assert shared.stats()["shared_tokens"] == 3 * size
    separate = engine(model, max_running=16)
    for request in asked:
        for sample in range(4):
            # A sample that was aborted before its first token begins where it would have.
            separate.submit([request])
            waiting = separate.abort()[sample]
            (result,) = separate.generate([replace(request, partials=(waiting,))])
            expected = grouped[4 * request.request_id + sample]
            assert result.token_ids == expected.token_ids
            np.testing.assert_allclose(result.logprobs, expected.logprobs, atol=1e-5)
    assert separate.stats()["shared_tokens"] == 0


def test_requests_with_one_prompt_share_it_while_they_wait():
    model = tiny()
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    prompts = [[5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 8], [5, 6, 7]]
    asked = [
        GenerationRequest(index, prompt, replace(params, seed=index))
        for index, prompt in enumerate(prompts)
    ]
    together = engine(model, max_running=16)
    found = together.generate(asked)
    # The last comes behind another prompt.
    assert together.stats()["prompt_tokens"] == 9 and together.stats()["shared_tokens"] == 6
    assert [result.computed_tokens for result in found] == [3, 0, 0, 3, 3]
    for request, result in zip(asked, found, strict=True):
        (alone,) = engine(model, max_running=16).generate([request])
        assert result.token_ids == alone.token_ids
        np.testing.assert_allclose(result.logprobs, alone.logprobs, atol=1e-5)
    without = engine(model, max_running=16, reuse_prefixes=False)
    without.generate(asked)
    assert without.stats()["shared_tokens"] == 0
    # No pack takes more than a quarter of the rows.
    few = engine(model, max_running=8)
    few.generate(asked)
    assert few.stats()["shared_tokens"] == 3
    # Whoever is aborted leaves the others.
    waiting = engine(model, max_running=16)
    waiting.submit(asked)
    (gone,) = waiting.abort({1})
    rest = []
    while waiting.unfinished:
        rest += waiting.step()
    assert gone.request_id == 1 and sorted(r.request_id for r in rest) == [0, 2, 3, 4]


def test_samples_of_a_group_differ_and_seeds_repeat():
    model = tiny()
    request = requests(1, n=6, ignore_eos=True)[0]
    first, again = engine(model).generate([request]), engine(model, seed=5).generate([request])
    assert len({tuple(r.token_ids) for r in first}) == 6
    assert tokens(first) == tokens(again)
    other = replace(request, params=replace(request.params, seed=99))
    assert tokens(engine(model).generate([other])) != tokens(first)


def test_without_a_seed_every_request_has_noise_of_its_own():
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    asked = [GenerationRequest(index, [5, 6], params) for index in range(4)]
    first, second = engine(seed=1), engine(seed=2)
    drawn = [*first.generate(asked), *first.generate(asked), *second.generate(asked)]
    assert len({tuple(result.token_ids) for result in drawn}) == 12


def test_more_requests_than_rows_of_very_different_lengths():
    model = tiny()
    asked = [
        GenerationRequest(
            index,
            prompt,
            SamplingParams(max_new_tokens=1 + 13 * index % 40, seed=index, ignore_eos=True),
            n=1 + index % 3,
        )
        for index, prompt in enumerate(prompts(25, longest=50))
    ]
    small = engine(model, max_running=5, max_prefill_tokens=64)
    results = small.generate(asked)
    assert [len(r.token_ids) for r in results] == [
        request.params.max_new_tokens for request in asked for _ in range(request.n)
    ]
    for result in results:
        exact = logprobs(model, asked[result.request_id].prompt_ids, result.token_ids)
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-5)
    stats = small.stats()
    assert stats["running"] == stats["waiting"] == 0
    assert stats["new_tokens"] == sum(len(r.token_ids) for r in results)


def test_the_batch_shrinks_when_responses_end():
    wide = engine(max_running=64)
    ends = [4] * 56 + [60] * 8
    asked = [
        GenerationRequest(i, [3], SamplingParams(max_new_tokens=end, seed=i, ignore_eos=True))
        for i, end in enumerate(ends)
    ]
    wide.generate(asked[::-1])
    # 64 rows for 3 steps, then 8: the first token of a response comes with its prompt.
    assert wide.stats()["row_steps"] == 64 * 3 + 8 * 56


# -- how it ends -----------------------------------------------------------------------------------


def test_responses_stop_at_the_end_of_sequence():
    model = tiny()
    asked = requests(8, n=4, max_new_tokens=70)
    results = engine(model, max_running=32).generate(asked)
    assert {result.finish_reason for result in results} == {"stop", "length"}
    for result in results:
        stopped = result.finish_reason == "stop"
        assert EOS not in result.token_ids[:-1]
        assert (result.token_ids[-1] == EOS) == stopped
        assert stopped or len(result.token_ids) == 70


def test_stop_tokens_and_ignore_eos():
    asked = requests(8, n=4, max_new_tokens=70, stop_token_ids=(4, 5, 6, 7), ignore_eos=True)
    results = engine().generate(asked)
    assert any(EOS in result.token_ids for result in results)
    stopped = [result for result in results if result.finish_reason == "stop"]
    assert {result.token_ids[-1] for result in stopped} == {4, 5, 6, 7}
    for result in results:
        assert not {4, 5, 6, 7} & set(result.token_ids[:-1])


def test_without_a_limit_a_response_fills_the_sequence():
    asked = [GenerationRequest(0, [5] * 90, SamplingParams(ignore_eos=True))]
    (result,) = engine().generate(asked)
    assert (len(result.token_ids), result.finish_reason) == (LENGTH - 90, "length")


def test_abort_returns_what_there_is():
    model = tiny()
    asked = requests(6, n=2, ignore_eos=True)
    expected = tokens(engine(model).generate(asked))
    running = engine(model, max_running=8)
    running.submit(asked)
    for _ in range(5):
        assert running.step() == []
    some = running.abort([1, 5])
    assert {r.request_id for r in some} == {1, 5} and len(some) == 4
    assert {r.finish_reason for r in some} == {"abort"}
    rest = running.abort()
    assert {r.request_id for r in rest} == {0, 2, 3, 4} and running.unfinished == 0
    for result in [*some, *rest]:
        whole = expected[result.request_id, result.sample_index]
        # Responses 4 and 5 waited for the eight rows of the others.
        assert result.token_ids == whole[: 0 if result.request_id > 3 else 6]
    assert running.abort() == [] and running.generate(asked[:1])
    with pytest.raises(ValueError, match="abort: 17 is not being generated"):
        running.abort([17])


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["torch", "transformers"])
def test_new_weights_give_the_very_next_token(kernels):
    old, new = tiny(seed=0), tiny(seed=1)
    running = engine(tiny(seed=0), kernels=kernels)
    asked = requests(5, n=2, ignore_eos=True)
    running.submit(asked)
    for _ in range(7):
        running.step()
    aborted = running.abort()
    running.update_weights(new.state_dict(), version=3)
    assert running.version == 3
    results = running.generate([request.carry_on(aborted) for request in asked])
    partial = {(r.request_id, r.sample_index): r for r in aborted}
    assert len(results) == 10
    for result in results:
        before = partial[result.request_id, result.sample_index]
        made = len(before.token_ids)
        prompt = asked[result.request_id].prompt_ids
        assert result.token_ids[:made] == before.token_ids
        assert result.versions == [0] * made + [3] * (24 - made)
        exact = [
            *logprobs(old, prompt, result.token_ids)[:made],
            *logprobs(new, prompt, result.token_ids)[made:],
        ]
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-5)
    # The noise is that of the position: as if the new weights had been there all along.
    again = engine(tiny(seed=1), kernels=kernels).generate(
        [request.carry_on(aborted) for request in asked]
    )
    assert tokens(again) == tokens(results)


def test_what_is_carried_on_under_the_same_weights_is_what_would_have_been():
    model = tiny()
    asked = requests(5, n=3)
    expected = engine(model).generate(asked)
    running = engine(model, max_running=6)
    results, left = [], asked
    while left:
        running.submit(left)
        for _ in range(4):
            results += running.step()
        aborted = running.abort()
        results += [r for r in aborted if r.finish_reason != "abort"]
        left = [request for each in left if (request := each.carry_on(aborted))]
    assert tokens(results) == tokens(expected)
    for result in results:
        (same,) = [
            r
            for r in expected
            if (r.request_id, r.sample_index) == (result.request_id, result.sample_index)
        ]
        assert result.finish_reason == same.finish_reason
        np.testing.assert_allclose(result.logprobs, same.logprobs, atol=1e-5)


def test_the_engine_can_carry_on_by_itself():
    new = tiny(seed=1)
    asked = requests(4, n=2, ignore_eos=True)
    by_caller, by_engine = engine(), engine()
    for running in (by_caller, by_engine):
        running.submit(asked)
        for _ in range(6):
            running.step()
    with pytest.raises(ValueError, match="8 responses are in the making.*recompute=True"):
        by_engine.update_weights(new.state_dict(), 1)
    by_engine.update_weights(new.state_dict(), 1, recompute=True)
    results = []
    while by_engine.unfinished:
        results += by_engine.step()
    aborted = by_caller.abort()
    by_caller.update_weights(new.state_dict(), 1)
    expected = by_caller.generate([request.carry_on(aborted) for request in asked])
    assert tokens(results) == tokens(expected)
    assert all(set(result.versions) == {0, 1} for result in results)


def test_who_writes_into_the_model_writes_into_the_engine():
    running = engine()
    asked = requests(3, ignore_eos=True)
    running.generate(asked)
    running.model.load_state_dict(tiny(seed=1).state_dict())
    running.weights_changed(version=8)
    results = running.generate(asked)
    assert tokens(results) == tokens(engine(tiny(seed=1)).generate(asked))
    assert results[0].versions[0] == 8


def test_weights_that_do_not_fit_are_refused():
    named = tiny().state_dict()
    del named["model.norm.weight"]
    running = engine()
    with pytest.raises(WeightMismatch, match="model.norm.weight"):
        running.update_weights(named, 1)
    with pytest.raises(ValueError, match="an update that failed; update_weights"):
        running.generate(requests(1))
    running.abort()
    running.update_weights(tiny().state_dict(), 1)
    assert running.generate(requests(1))


@pytest.mark.parametrize("weights", ["keep", "offload", "discard"])
@pytest.mark.parametrize("kernels", ["torch", "transformers"])
def test_sleep_frees_memory_and_changes_nothing(kernels, weights):
    running = engine(kernels=kernels)
    asked = requests(3)
    expected = tokens(running.generate(asked))
    used = running.stats()["cache_bytes"]
    running.sleep(weights)
    assert used > 0 and running.stats()["cache_bytes"] == 0
    with pytest.raises(ValueError, match="the engine sleeps"):
        running.generate(asked)
    running.abort()
    running.wake()
    if weights == "discard":
        running.submit(asked)
        with pytest.raises(ValueError, match="weights were discarded by sleep"):
            running.step()
        running.abort()
        running.update_weights(tiny().state_dict(), 0)
    assert running.stats()["cache_bytes"] == used
    assert tokens(running.generate(asked)) == expected


def test_sleep_and_wake_come_in_turns():
    running = engine()
    with pytest.raises(ValueError, match="wake: the engine is awake"):
        running.wake()
    running.submit(requests(1))
    with pytest.raises(ValueError, match="1 responses are in the making; abort"):
        running.sleep()
    running.abort()
    running.sleep()
    with pytest.raises(ValueError, match="sleeps already"):
        running.sleep()
    with pytest.raises(ValueError, match="wake\\(\\) it first"):
        running.update_weights(tiny().state_dict(), 1)


def test_logits_that_are_not_finite_are_found():
    running = engine()
    named = tiny().state_dict()
    named["model.norm.weight"] = named["model.norm.weight"] * torch.nan
    running.update_weights(named, 5)
    with pytest.raises(RuntimeError, match="not finite, with weights of version 5"):
        running.generate(requests(1))


# -- settings --------------------------------------------------------------------------------------


def test_it_is_built_from_a_folder(tmp_path):
    model = tiny()
    model.save_pretrained(tmp_path)
    settings = EngineSettings(max_length=LENGTH, model_path=str(tmp_path), max_running=4)
    asked = requests(3, n=2)
    assert tokens(build_engine("hf", settings).generate(asked)) == tokens(
        engine(model).generate(asked)
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2: rollout_backend hf runs on one"),
        ({"model": None, "model_path": "/no/folder"}, "'/no/folder': there is no such folder"),
        ({"max_running": 0}, "max_running is 0"),
        ({"max_length": 1}, "max_length is 1"),
    ],
)
def test_wrong_settings_are_named(keys, message):
    settings = {"max_length": LENGTH, "model": tiny(), **keys}
    with pytest.raises(ValueError, match=message):
        build_engine("hf", EngineSettings(**settings))
