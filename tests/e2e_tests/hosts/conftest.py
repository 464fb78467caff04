"""One bed of hosts, with Ray on each, for all tests here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlinf.testbed import HostBed, unavailable
from rlinf.testbed.ray_nodes import RayNodes

ROOT = Path(__file__).resolve().parents[3]
HOSTS = 3


class HostCluster:
    """Hosts with Ray on them, on the first of which programs are started.

    Args:
        bed: the hosts.
    """

    def __init__(self, bed: HostBed):
        self.bed = bed
        self.hosts = bed.hosts
        self.ray = RayNodes(bed.hosts)
        self.shared = bed.shared

    def run(self, *command: str, host: int = 0, code: int = 0) -> str:
        """Runs Python with arguments on a host; returns what it said."""
        done = self.hosts[host].run(
            [sys.executable, *command],
            env={**self.ray.env, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        return said

    def train(self, recipe: str, *overrides: str, **options: int) -> str:
        """Trains on all hosts."""
        nodes = f"cluster.num_nodes={len(self.hosts)}"
        return self.run("-m", "rlinf.cli", "train", recipe, nodes, *overrides, **options)

    def files(self, folder: str | Path, host: int = 0) -> dict[str, int]:
        """Sizes of the files under a folder of a host, by their paths in it."""
        there = self.hosts[host].run(
            ["find", str(folder), "-type", "f", "-printf", "%P\t%s\n"],
            capture_output=True,
            text=True,
        )
        found = (line.split("\t") for line in there.stdout.splitlines())
        return {name: int(size) for name, size in found}

    def read(self, path: str | Path, host: int = 0) -> str:
        """What a file of a host says."""
        return (
            self.hosts[host]
            .run(["cat", str(path)], check=True, capture_output=True, text=True)
            .stdout
        )

    def metrics(self, run: str | Path) -> list[dict]:
        """The metrics of a run, without those that depend on the speed of the machine."""
        lines = self.read(Path(run) / "metrics.jsonl").splitlines()
        timed = ("time/", "speed", "per_second", "system/")
        return [
            {k: v for k, v in json.loads(line).items() if not any(t in k for t in timed)}
            for line in lines
        ]


@pytest.fixture(scope="session")
def hosts() -> Iterator[HostCluster]:
    why_not = unavailable()
    if why_not and os.environ.get("RLINF_REQUIRE_HOSTS") != "1":
        pytest.skip(f"there can be no hosts here: {why_not}")
    with HostBed(HOSTS) as bed:
        yield HostCluster(bed)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the time to wait for the bed, which starts Ray again on a busy machine."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))
