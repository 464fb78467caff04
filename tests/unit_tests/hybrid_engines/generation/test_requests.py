"""Requests that cannot be served are refused in words, before anything is generated."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlinf.config.schema.algorithm import SamplingConfig
from rlinf.hybrid_engines.generation import GenerationRequest, GenerationResult, SamplingParams
from tests.unit_tests.hybrid_engines.generation.test_engine import engine
from tests.unit_tests.hybrid_engines.generation.tiny import VOCABULARY

PARTIAL = GenerationResult("a", 1, [5, 6], [-1.0, -2.0], [0, 0], "abort")


@pytest.fixture(scope="module")
def idle():
    return engine(max_running=2)


def asked(**keys):
    return GenerationRequest(**{"request_id": "a", "prompt_ids": [3, 4], **keys})


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (asked(prompt_ids=[]), "request 'a' has an empty prompt"),
        (asked(prompt_ids=[3] * 96), "prompt has 96 tokens.* 96 of a sequence; raise runner.seq_l"),
        (
            asked(prompt_ids=[3] * 90, params=SamplingParams(max_new_tokens=7)),
            "90 tokens of the prompt \\+ 7 new ones = 97.* 96 at most; raise runner.seq_length or "
            "lower algorithm.sampling_params.max_new_tokens",
        ),
        (asked(prompt_ids=[3, VOCABULARY]), f"has the token {VOCABULARY}, but tokens are 0 to 47"),
        (asked(prompt_ids=[-1]), "has the token -1"),
        (asked(n=0), "n is 0"),
        (asked(partials=(replace(PARTIAL, logprobs=[]),)), "2 tokens, 0 log-probabilities and 2"),
        (asked(partials=(replace(PARTIAL, finish_reason="stop"),)), "sample 1 ended with 'stop'"),
        (
            asked(partials=(PARTIAL,), params=SamplingParams(max_new_tokens=2)),
            "has 2 tokens already, the most is 2",
        ),
        (asked(partials=(replace(PARTIAL, token_ids=[5, 99]),)), "partial response has the token"),
    ],
)
def test_a_request_that_cannot_be_served(idle, request_, message):
    good = asked(request_id="b")
    with pytest.raises(ValueError, match=message):
        idle.submit([good, request_])
    assert idle.unfinished == 0


def test_names_are_unique_while_they_are_used(idle):
    with pytest.raises(ValueError, match="request 'a' is being generated already"):
        idle.submit([asked(), asked()])
    idle.submit([asked()])
    with pytest.raises(ValueError, match="request 'a' is being generated already"):
        idle.submit([asked()])
    with pytest.raises(ValueError, match="needs an idle engine, but 1 responses"):
        idle.generate([asked(request_id="b")])
    idle.abort()
    assert idle.generate([asked(params=SamplingParams(max_new_tokens=1))])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_a_parameter_out_of_range(keys, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**keys)


def test_parameters_come_from_the_config():
    section = SamplingConfig(temperature=0.7, top_k=5, max_new_tokens=12)
    params = SamplingParams.from_config(section, seed=3, stop_token_ids=[8])
    assert params == SamplingParams(12, 0.7, 5, 1.0, (8,), False, 3)
    assert SamplingParams.from_config(SamplingConfig(do_sample=False)).greedy
    with pytest.raises(ValueError, match="repetition_penalty is 1.2"):
        SamplingParams.from_config(SamplingConfig(repetition_penalty=1.2))


def test_only_what_was_aborted_is_carried_on():
    request = asked(n=3)
    results = [
        PARTIAL,
        replace(PARTIAL, sample_index=0, finish_reason="stop"),
        replace(PARTIAL, request_id="b"),
    ]
    assert request.carry_on(results).partials == (PARTIAL,)
    assert request.carry_on(results[1:]) is None


def test_settings_come_from_the_config():
    from rlinf.hybrid_engines.generation import EngineSettings

    model = SimpleNamespace(model_path=None, precision=None)
    actor = SimpleNamespace(model_path="/folder", precision="bf16", trust_remote_code=True)
    rollout = SimpleNamespace(
        rollout_backend="vllm",
        model=model,
        model_dir=None,
        seed=None,
        max_running_requests=64,
        gpu_memory_utilization=0.5,
        tensor_parallel_size=2,
        enforce_eager=True,
        cuda_graph_max_bs=32,
        enable_torch_compile=False,
        vllm={"enable_prefix_caching": False},
    )
    cfg = SimpleNamespace(
        runner=SimpleNamespace(seq_length=128, seed=9),
        rollout=rollout,
        actor=SimpleNamespace(model=actor),
    )
    assert EngineSettings.from_config(cfg) == EngineSettings(
        max_length=128,
        model_path="/folder",
        precision="bf16",
        max_running=64,
        seed=9,
        gpu_memory_utilization=0.5,
        tensor_parallel_size=2,
        enforce_eager=True,
        cuda_graph_max_bs=32,
        trust_remote_code=True,
        options={"enable_prefix_caching": False},
    )
