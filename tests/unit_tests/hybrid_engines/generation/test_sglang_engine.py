"""The SGLang engine against a stand-in for `sglang`, which treats its process as SGLang does."""

import asyncio
import os
import signal
import sys
import threading

import numpy as np
import pytest
import torch

from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationRequest,
    SamplingParams,
    build_engine,
)
from rlinf.hybrid_engines.generation.sglang_engine import check_version
from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch
from rlinf.scheduler import Worker
from tests.unit_tests.hybrid_engines.generation import stand_in_sglang
from tests.unit_tests.hybrid_engines.generation.tiny import logprobs, tiny
from tests.unit_tests.workers.actor.test_reasoning_actor import slots

pytestmark = pytest.mark.timeout(120)


def build(folder, **further):
    settings = {
        "max_length": 64,
        "model_path": str(folder),
        "max_running": 16,
        "options": {"attention_backend": None, "decode_log_interval": 7, "use_torch_compile": True},
        **further,
    }
    return build_engine("sglang", EngineSettings(**settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    tiny().save_pretrained(place)
    return place


@pytest.fixture
def running(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "sglang", None)
    stand_in_sglang.install()
    engine = build(folder)
    yield engine
    engine.close()


def request(name, n=1, length=4, **params):
    settings = {"max_new_tokens": 12, **params}
    return GenerationRequest(name, [5] * length, SamplingParams(**settings), n)


def agree(results, model, prompt=(5, 5, 5, 5), temperature=1.0):
    assert results
    for result in results:
        exact = logprobs(model, list(prompt), result.token_ids, temperature)
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)


def test_settings_reach_sglang(running):
    keys = running._engine.keys
    assert keys["dtype"] == "float32" and keys["context_length"] == 64
    assert keys["max_running_requests"] == 16 and keys["mem_fraction_static"] == 0.65
    assert keys["decode_log_interval"] == 7 and keys["skip_tokenizer_init"]
    assert keys["enable_torch_compile"]
    on_cuda = torch.cuda.is_available()
    assert keys["enable_memory_saver"] == keys["enable_weights_cpu_backup"] == on_cuda
    assert keys.get("attention_backend") == (None if on_cuda else "torch_native")
    # Later versions have another name for it.
    assert "cuda_graph_max_bs" not in keys


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_responses_come_with_logprobs_and_reasons(running, temperature):
    results = running.generate([request("a", n=2, temperature=temperature), request("b")])
    assert [(r.request_id, r.finish_reason) for r in results] == [
        ("a", "length"),
        ("a", "length"),
        ("b", "length"),
    ]
    agree(results[:2], tiny(), temperature=temperature)
    (free,) = running.generate([request("c", temperature=0.0)])
    stop = free.token_ids[5]
    (ended,) = running.generate([request("d", temperature=0.0, stop_token_ids=(stop,))])
    assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert ended.finish_reason == "stop"


def test_params_reach_sglang(running):
    running.generate([request("a", temperature=0.7, top_k=5, top_p=0.9, ignore_eos=True)])
    ((_, tokens, params),) = running._engine.asked
    assert tokens == [5] * 4
    assert params["temperature"] == 0.7 and params["top_k"] == 5 and params["top_p"] == 0.9
    assert params["ignore_eos"] is True and params["repetition_penalty"] == 1.0
    running.generate([request("b")])
    assert running._engine.asked[-1][2]["top_k"] == -1


def test_texts_end_responses_where_there_is_a_tokenizer(running, folder):
    with pytest.raises(ValueError, match="ends at the texts"):
        running.submit([request("a", stop=("ab",))])
    engine = build(folder, tokenizer_path=str(folder))
    keys = engine._engine.keys
    assert keys["tokenizer_path"] == str(folder) and not keys["skip_tokenizer_init"]
    engine.generate([request("a", stop=("ab",))])
    params = engine._engine.asked[-1][2]
    assert params["stop"] == ["ab"] and params["no_stop_trim"]
    engine.close()


def test_results_stream(running):
    running.submit([request("long", max_new_tokens=60), request("short", max_new_tokens=1)])
    results = []
    while not results:
        results = running.step()
    assert results[0].request_id == "short" and running.unfinished == 1
    running.abort()


def test_what_is_aborted_is_carried_on_under_new_weights(running):
    asked = request("a", n=3, max_new_tokens=50)
    running._engine.slow = True
    running.submit([asked, request("b", max_new_tokens=2)])
    while not any(result.request_id == "b" for result in running.step()):
        pass
    aborted = running.abort()
    running._engine.slow = False
    assert len(aborted) == 3 and running.unfinished == 0
    made = [len(result.token_ids) for result in aborted]
    assert {result.finish_reason for result in aborted} == {"abort"} and 0 < max(made) < 50
    new = tiny(seed=4)
    running.update_weights(new.state_dict(), version=4)
    for result, count in zip(running.generate([asked.carry_on(aborted)]), made, strict=True):
        assert result.versions == [0] * count + [4] * (50 - count)
        exact = [
            *logprobs(tiny(), [5] * 4, result.token_ids)[:count],
            *logprobs(new, [5] * 4, result.token_ids)[count:],
        ]
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)


def test_an_abort_ends_no_other_request(running):
    # SGLang ends whatever begins with the name, and the first of twelve begins the names of three.
    running._engine.slow = True
    running.submit([request(i, max_new_tokens=20) for i in range(12)])
    running.step()
    assert [r.request_id for r in running.abort([0])] == [0]
    running._engine.slow = False
    results = []
    while running.unfinished:
        results += running.step()
    assert {r.request_id for r in results} == set(range(1, 12))
    assert {r.finish_reason for r in results} == {"length"}


def test_the_engine_carries_on_by_itself(running):
    running.submit([request("a", max_new_tokens=50), request("b", max_new_tokens=1)])
    results = running.step()
    running.update_weights(tiny(seed=1).state_dict(), version=1, recompute=True)
    while running.unfinished:
        results += running.step()
    result = max(results, key=lambda each: len(each.token_ids))
    assert len(result.token_ids) == 50 and result.versions[-1] == 1


def test_weights_are_proved_to_arrive(running):
    running.update_weights(tiny(seed=2).state_dict(), 1)
    agree(running.generate([request("a", n=2)]), tiny(seed=2))
    sent = list(running._engine.calls)
    assert len(sent) > 5 and all(call[0] == "weights" for call in sent)
    running._engine.flushed = False
    running.update_weights(tiny(seed=3).state_dict(), 2)
    assert len(running._engine.calls) == len(sent) + 1 and running._engine.flushed
    agree(running.generate([request("a", n=2)]), tiny(seed=3))


@pytest.mark.parametrize(("stuck", "kind"), [("norm", "vectors"), ("proj", "matrices")])
def test_weights_without_effect_are_an_error(running, stuck, kind):
    running._engine.stuck = (stuck,)
    with pytest.raises(WeightMismatch, match=f"SGLang took new values of {kind} .*without effect"):
        running.update_weights(tiny(seed=2).state_dict(), 1)


def test_weights_that_are_refused_are_told(running):
    running._engine.refuses = "shape of lm_head.weight"
    with pytest.raises(WeightMismatch, match="did not take the weights: shape of lm_head"):
        running.update_weights(tiny().state_dict(), 1)
    weights = dict(tiny().state_dict())
    del weights["model.norm.weight"]
    with pytest.raises(WeightMismatch, match="missing .'model.norm.weight'"):
        running.update_weights(weights, 1)


def test_memory(running, monkeypatch):
    monkeypatch.setattr(running, "_on_cuda", True)
    running.sleep()
    running.wake()
    running.sleep("discard")
    running.wake()
    assert running._engine.calls == [
        ("release", ["kv_cache"]),
        ("resume", ["kv_cache"]),
        ("release", ["kv_cache", "weights"]),
        ("resume", ["weights"]),
        ("resume", ["kv_cache"]),
    ]


@pytest.mark.parametrize("version", ["0.5.10", "0.5.18", "0.4.9.post1", "0.6.0"])
def test_other_versions_are_refused_by_name(monkeypatch, folder, version):
    monkeypatch.setitem(sys.modules, "sglang", None)
    stand_in_sglang.install(version)
    with pytest.raises(ValueError, match=f"SGLang {version} is installed, and 0.5.11 to 0.5.17"):
        build(folder)
    for fine in ("0.5.11", "0.5.13.post1", "0.5.17"):
        check_version(fine)


def test_without_sglang_the_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(ValueError, match="sglang cannot be imported .* pip install sglang"):
        build_engine("sglang", EngineSettings(max_length=8, model_path=str(tmp_path)))
    with pytest.raises(ValueError, match="rollout_backend sglang needs a folder"):
        build_engine("sglang", EngineSettings(max_length=8, model=tiny()))


def test_the_process_is_left_as_it_was(running):
    assert not isinstance(asyncio.get_event_loop_policy(), stand_in_sglang.Policy)
    assert threading._register_atexit.__module__ == "threading"
    assert stand_in_sglang.VARIABLE not in os.environ and os.environ["SGLANG_RUN_ID"] == "1"


def test_a_process_that_ends_is_told_and_takes_nobody_along(running):
    running.submit([request("a", max_new_tokens=50)])
    running._engine.slow = True
    running._engine.child.kill()
    # What SGLang sends to its parent then.
    os.kill(os.getpid(), signal.SIGQUIT)
    with pytest.raises(RuntimeError, match=f"SGLang's process {running._engine.child.pid} has end"):
        while running.unfinished:
            running.step()


class SglangWorker(Worker):
    """Drives the engine from its running loop, as a rollout worker does."""

    async def start(self, folder: str, version: str = "0.5.13") -> bool:
        stand_in_sglang.install(version)
        self.before = signal.getsignal(signal.SIGQUIT), signal.getsignal(signal.SIGTERM)
        self.loop = asyncio.get_running_loop()
        self.engine = build(folder)
        return self.engine._engine.loop is self.loop

    async def generate(self, seed: int) -> list:
        self.engine.update_weights(tiny(seed=seed).state_dict(), seed)
        self.engine.submit([request("a", n=3)])
        results = []
        while self.engine.unfinished:
            results += self.engine.step()
            await asyncio.sleep(0)
        return results

    async def state(self) -> dict:
        return {
            "signals": self.before
            == (signal.getsignal(signal.SIGQUIT), signal.getsignal(signal.SIGTERM)),
            "policy": isinstance(asyncio.get_event_loop_policy(), stand_in_sglang.Policy),
            "pid": self.engine._engine.child.pid,
        }

    async def lose(self) -> str:
        self.engine._engine.child.kill()
        os.kill(os.getpid(), signal.SIGQUIT)
        self.engine._engine.slow = True
        self.engine.submit([request("b", max_new_tokens=50)])
        try:
            while self.engine.unfinished:
                self.engine.step()
        except RuntimeError as error:
            return str(error)
        return ""

    async def fail(self, folder: str) -> str:
        stand_in_sglang.install()
        try:
            build(folder)
        except RuntimeError as error:
            return str(error)
        return ""

    async def close(self) -> None:
        self.engine.close()


@pytest.mark.timeout(300)
def test_it_runs_inside_a_worker(cluster, folder):
    group = SglangWorker.create_group().launch(cluster, slots(1), name="SglangGroup")
    (folder / "broken").mkdir()
    assert "scheduler died" in group.fail(f"{folder}/broken").wait()[0]
    assert group.start(str(folder)).wait() == [False]
    for seed in (1, 2):
        results = group.generate(seed).wait()[0]
        agree(results, tiny(seed=seed))
        assert {tuple(r.versions) for r in results} == {(seed,) * 12}
    state = group.state().wait()[0]
    assert state["signals"] and not state["policy"]
    assert f"process {state['pid']} has ended" in group.lose().wait()[0]
    group.close().wait()
