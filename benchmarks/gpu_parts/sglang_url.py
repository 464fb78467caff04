"""Whole GRPO steps with a server of SGLang, which is given by its URL."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_parts.grpo import OURS, Steps
from benchmarks.gpu_parts.settings import Row, Settings
from benchmarks.gpu_parts.vllm_grpo import train_one
from benchmarks.harness import Entry, live, ours

UPDATES = 7
"""Steps that count; one more comes before them."""
START_SECONDS = 180.0
ON_CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"]
LOG = "sglang_server.log"


def measure(settings: Settings) -> Iterator[Row]:
    """A row for the start of the server, and one for the steps; engine and actor must agree."""
    steps = Steps.of(settings)
    entries = [Entry(OURS, "reasoning_rlinf.py", env=ours("").env)]
    with tempfile.TemporaryDirectory() as place, live(entries, Path(place)) as (made,):
        folder = Path(place) / "model"
        overrides = steps.prepare(made, folder)
        begin = time.monotonic()
        with serving(folder, settings) as url:
            yield {"engine": "server", "note": f"started in {time.monotonic() - begin:.0f} s"}
            overrides += [
                "rollout.rollout_backend=sglang_server",
                "~rollout.gpu_memory_utilization",
                f"rollout.server.url={url}",
                f"rollout.server.weights_folder={place}/weights",
                # In every step.
                "runner.agreement.interval=1",
            ]
            updates = 1 if settings.tiny else UPDATES
            row = train_one(made, steps, "sglang_server", updates, overrides)
            yield row
            if "largest gap" not in row:
                raise RuntimeError(row.get("note", "engine and actor were never compared"))


@contextlib.contextmanager
def serving(folder: Path, settings: Settings) -> Iterator[str]:
    """Start a server of a model and wait until it answers; it ends with the block.

    Yields:
        Its URL.

    Raises:
        RuntimeError: it ended, or did not answer in time; with the end of what it said.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder)]
    command += ["--port", str(port), "--context-length", "512", "--max-running-requests", "256"]
    command += ["--dtype", "float32" if settings.tiny else "bfloat16"]
    # Its own first request is a text, of which the tokenizer of this model makes no token.
    command += ["--skip-server-warmup"]
    command += ["--mem-fraction-static", "0.3", *(ON_CPU if settings.tiny else [])]
    log = settings.out / LOG
    with log.open("wb") as said:
        server = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, server, log)
        yield url
    finally:
        # It may have ended, and its processes not.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return
        if server.poll() is not None or time.monotonic() > end:
            what = f"has not answered within {START_SECONDS:g} s"
            if server.returncode is not None:
                what = f"has ended with code {server.returncode}"
            raise RuntimeError(f"the server {what}: {log.read_text(errors='replace')[-1500:]}")
        time.sleep(0.5)
