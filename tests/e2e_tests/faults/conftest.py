"""A Ray whose workers are forks, beside the one that other tests share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fork_server import ROOT, ForkServer, leave


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Where processes come from."""
    with ForkServer(("tests.e2e_tests.faults.program",)) as fork_server:
        yield fork_server


@pytest.fixture(scope="session")
def joining_ray(fork_server: ForkServer) -> Iterator[dict[str, str]]:
    """Variables of those who join that Ray."""
    command = [sys.executable, "-m", "tests.e2e_tests.faults.ray_host", fork_server.address]
    host = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        said = next((line for line in host.stdout if line.startswith("{")), None)
        assert said is not None, "Ray did not start; it says why above"
        yield json.loads(said)
    finally:
        leave(host)
