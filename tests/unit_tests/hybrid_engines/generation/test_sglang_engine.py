"""The SGLang engine against a small stand-in for `sglang.Engine`, which answers as it does."""

import asyncio
import random
import sys
from types import SimpleNamespace

import pytest

from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationRequest,
    SamplingParams,
    build_engine,
)
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch
from tests.unit_tests.hybrid_engines.generation.tiny import tiny


class FakeEngine:
    """Makes token 100 + position of the whole sequence, one per turn of its loop."""

    def __init__(self, **keys):
        self.keys = keys
        self.loop = asyncio.new_event_loop()
        self.tokenizer_manager = SimpleNamespace(abort_request=self._abort)
        self.aborted, self.calls, self.asked = set(), [], []
        self.accepts = True

    def _abort(self, rid):
        self.aborted.add(rid)

    async def async_generate(self, *, input_ids, sampling_params, return_logprob, rid):
        assert return_logprob
        self.asked.append((rid, list(input_ids), sampling_params))
        made, reason = [], "length"
        for step in range(sampling_params["max_new_tokens"]):
            await asyncio.sleep(0.001 * random.random())
            if rid in self.aborted:
                reason = "abort"
                break
            made.append((-0.5 * (step + 1), (len(input_ids) + step) % 40, None))
            if made[-1][1] in sampling_params["stop_token_ids"]:
                reason = "stop"
                break
        return {
            "text": "",
            "output_ids": [entry[1] for entry in made],
            "meta_info": {"finish_reason": {"type": reason}, "output_token_logprobs": made},
        }

    def update_weights_from_tensor(self, named_tensors):
        self.calls.append(("weights", [name for name, _ in named_tensors]))
        return (True, "") if self.accepts else (False, "shape of lm_head.weight")

    def release_memory_occupation(self, tags):
        self.calls.append(("release", tags))

    def resume_memory_occupation(self, tags):
        self.calls.append(("resume", tags))

    def shutdown(self):
        self.calls.append(("shutdown",))


@pytest.fixture
def running(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(Engine=FakeEngine))
    tiny().config.save_pretrained(tmp_path)
    settings = EngineSettings(
        max_length=64,
        model_path=str(tmp_path),
        max_running=16,
        precision="bf16",
        options={"attention_backend": None, "decode_log_interval": 7, "use_torch_compile": True},
    )
    return build_engine("sglang", settings)


def request(name, n=1, length=4, **params):
    settings = {"max_new_tokens": 12, **params}
    return GenerationRequest(name, [5] * length, SamplingParams(**settings), n)


def test_settings_reach_sglang(running):
    keys = running._engine.keys
    assert keys["dtype"] == "bfloat16" and keys["context_length"] == 64
    assert keys["max_running_requests"] == 16 and keys["mem_fraction_static"] == 0.65
    assert keys["decode_log_interval"] == 7 and "attention_backend" not in keys
    assert keys["enable_torch_compile"] and keys["enable_memory_saver"]


def test_responses_come_with_logprobs_and_reasons(running):
    results = running.generate([request("a", n=2), request("b", stop_token_ids=(9,), length=6)])
    assert [r.token_ids for r in results[:2]] == [list(range(4, 16))] * 2
    assert results[0].logprobs == [-0.5 * (i + 1) for i in range(12)]
    assert [(r.request_id, r.finish_reason) for r in results] == [
        ("a", "length"),
        ("a", "length"),
        ("b", "stop"),
    ]
    assert results[2].token_ids == [6, 7, 8, 9] and results[2].versions == [0] * 4


def test_params_reach_sglang(running):
    running.generate([request("a", temperature=0.7, top_k=5, top_p=0.9, ignore_eos=True)])
    ((_, tokens, params),) = running._engine.asked
    assert tokens == [5] * 4
    assert params["temperature"] == 0.7 and params["top_k"] == 5 and params["top_p"] == 0.9
    assert params["ignore_eos"] is True
    running.generate([request("b")])
    assert running._engine.asked[-1][2]["top_k"] == -1


def test_results_stream(running):
    running.submit([request("long", max_new_tokens=40), request("short", max_new_tokens=1)])
    (first,) = running.step()
    assert first.request_id == "short" and running.unfinished == 1
    running.abort()


def test_what_is_aborted_is_carried_on_under_new_weights(running):
    asked = request("a", n=3, max_new_tokens=50)
    running.submit([asked, request("b", max_new_tokens=2)])
    while not any(result.request_id == "b" for result in running.step()):
        pass
    aborted = running.abort()
    assert len(aborted) == 3 and running.unfinished == 0
    made = [len(result.token_ids) for result in aborted]
    assert {result.finish_reason for result in aborted} == {"abort"} and max(made) < 50
    running.update_weights(tiny().state_dict(), version=4)
    assert running._engine.calls[0][0] == "weights"
    for result, count in zip(running.generate([asked.carry_on(aborted)]), made, strict=True):
        assert result.token_ids == [i % 40 for i in range(4, 54)]
        assert result.versions == [0] * count + [4] * (50 - count)


def test_the_engine_carries_on_by_itself(running):
    running.submit([request("a", max_new_tokens=50), request("b", max_new_tokens=1)])
    running.step()
    running.update_weights(tiny().state_dict(), version=1, recompute=True)
    (result,) = running.step()
    assert result.token_ids == [i % 40 for i in range(4, 54)] and result.versions[-1] == 1


def test_weights_that_are_refused_are_told(running):
    running._engine.accepts = False
    with pytest.raises(WeightMismatch, match="did not take the weights: shape of lm_head"):
        running.update_weights(tiny().state_dict(), 1)


def test_memory(running):
    running.sleep()
    running.wake()
    running.sleep("discard")
    running.wake()
    running.close()
    assert running._engine.calls == [
        ("release", ["kv_cache"]),
        ("resume", ["kv_cache"]),
        ("release", ["kv_cache", "weights"]),
        ("resume", ["weights"]),
        ("resume", ["kv_cache"]),
        ("shutdown",),
    ]


def test_without_sglang_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(ValueError, match="sglang cannot be imported .* pip install sglang"):
        build_engine("sglang", EngineSettings(max_length=8, model_path=str(tmp_path)))
    with pytest.raises(ValueError, match="rollout_backend sglang needs a folder"):
        build_engine("sglang", EngineSettings(max_length=8, model=tiny()))
