"""Servers of vLLM and SGLang themselves, where there is a Python that has them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

VLLM = "-m vllm.entrypoints.openai.api_server --model {folder} --port {port} --dtype float32"
VLLM += " --max-model-len {length} --max-num-seqs {running} --enforce-eager"
VLLM += " --no-enable-chunked-prefill --max-num-batched-tokens 8192"
VLLM += " --logprobs-mode processed_logprobs"
SGLANG = "-m sglang.launch_server --model-path {folder} --port {port} --dtype float32"
SGLANG += " --device cpu --attention-backend torch_native --disable-cuda-graph"
SGLANG += " --context-length {length} --max-running-requests {running} --mem-fraction-static 0.1"
SGLANG += " --skip-server-warmup"
COMMANDS = {
    "vllm_server": ("vllm", "RLINF_VLLM_PYTHON", VLLM),
    "sglang_server": ("sglang", "RLINF_SGLANG_PYTHON", SGLANG),
}
VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
}


@contextlib.contextmanager
def serving(
    backend: str, folder: str | Path, log: Path, length: int = 64, running: int = 16
) -> Iterator[str]:
    """Start a server of a model, which ends with the block; skip the test where there is none.

    Args:
        backend: `vllm_server` or `sglang_server`.
        folder: Of the model, with its tokenizer.
        log: File for what the server says.
        length: Most tokens of a sequence.
        running: Most requests at a time.

    Yields:
        Its URL; it may not take connections yet.
    """
    package, variable, command = COMMANDS[backend]
    python = os.environ.get(variable)
    if python is None:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"there is no {package} here, and {variable} names no Python that has it")
        python = sys.executable
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = command.format(folder=folder, port=port, length=length, running=running).split()
    # A Python of its own finds its own packages.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with log.open("wb") as said:
        process = subprocess.Popen(
            [python, *given],
            env=kept | VARIABLES,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
