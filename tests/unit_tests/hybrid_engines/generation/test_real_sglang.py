"""The SGLang engine with SGLang itself (a CPU is enough); skipped where there is none."""

import asyncio
import os
import signal

import numpy as np
import pytest

from rlinf.data.tokenizer import character_tokenizer
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    GenerationRequest,
    SamplingParams,
    build_engine,
)
from tests.unit_tests.hybrid_engines.generation.remote.serving import ALPHABET
from tests.unit_tests.hybrid_engines.generation.tiny import logprobs, tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def other(seed):
    return tiny(seed=seed, head_dim=32)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    pytest.importorskip("sglang")
    folder = tmp_path_factory.mktemp("model")
    other(0).save_pretrained(folder)
    character_tokenizer(ALPHABET).save_pretrained(folder)
    settings = EngineSettings(
        max_length=64,
        model_path=str(folder),
        max_running=8,
        gpu_memory_utilization=0.1,
        tokenizer_path=str(folder),
    )

    async def start():
        # As in a worker, a loop runs.
        return build_engine("sglang", settings)

    engine = asyncio.run(start())
    yield engine
    engine.close()


def requests(count=4, n=2, **params):
    settings = {"max_new_tokens": 30, "ignore_eos": True, **params}
    return [
        GenerationRequest(i, [5 + i, 7, 9 + i], SamplingParams(**settings), n) for i in range(count)
    ]


def agree(results, asked, model, temperature=1.0):
    assert results
    for result in results:
        exact = logprobs(model, asked[result.request_id].prompt_ids, result.token_ids, temperature)
        np.testing.assert_allclose(result.logprobs, exact, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_those_of_a_plain_forward(running, temperature):
    running.update_weights(other(0).state_dict(), 0)
    asked = requests(temperature=temperature)
    agree(running.generate(asked), asked, other(0), temperature)
    if temperature:
        asked = requests(temperature=temperature, top_p=0.7, top_k=9)
        agree(running.generate(asked), asked, other(0), temperature)


def test_new_weights_take_effect_in_place(running):
    asked = requests()
    for version in (1, 2, 3):
        running.update_weights(other(version).state_dict(), version)
        results = running.generate(asked)
        agree(results, asked, other(version))
        assert results[0].versions == [version] * 30


def test_what_is_aborted_is_carried_on(running):
    running.update_weights(other(0).state_dict(), 0)
    asked = requests(8, max_new_tokens=55)
    running.submit(asked)
    done = running.step()
    aborted = running.abort()
    assert running.unfinished == 0 and len(done) + len(aborted) == 16
    carried = [carried for request in asked if (carried := request.carry_on(aborted))]
    agree(running.generate(carried), asked, other(0))


def test_texts_of_several_tokens_end_a_response(running):
    running.update_weights(other(0).state_dict(), 0)
    (free,) = running.generate(requests(1, n=1, temperature=0.0))
    text = "".join(ALPHABET[token - 2] for token in free.token_ids[2:5])
    (ended,) = running.generate(requests(1, n=1, temperature=0.0, stop=(text,)))
    assert ended.token_ids == free.token_ids[:5] and ended.finish_reason == "stop"


def test_a_process_that_ends_is_told(running):
    running.submit(requests(1, max_new_tokens=60))
    os.kill(running._pids[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"SGLang's process {running._pids[0]} has ended"):
        while running.unfinished:
            running.step()
