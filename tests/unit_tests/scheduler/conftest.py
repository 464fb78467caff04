"""Groups of workers that talk: some serve all tests of a module, some are there to be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlinf.scheduler import Cluster, FlexiblePlacementStrategy, WorkerGroup
from tests.unit_tests.scheduler.comm_workers import Talker
from tests.unit_tests.scheduler.small_run import SmallRun

Launch = Callable[..., WorkerGroup]


def launch(cluster: Cluster, count: int, name: str, cls: type = Talker) -> WorkerGroup:
    strategy = FlexiblePlacementStrategy([[i] for i in range(count)])
    return cls.create_group().launch(cluster, strategy, name=name)


@pytest.fixture(scope="module")
def pair(shared_cluster: Cluster) -> WorkerGroup:
    """Group "pair" of two, for tests that leave it as they found it."""
    return launch(shared_cluster, 2, "pair")


@pytest.fixture(scope="module")
def three(shared_cluster: Cluster) -> WorkerGroup:
    """Group "three" of three, for tests that leave it as they found it."""
    return launch(shared_cluster, 3, "three")


@pytest.fixture(scope="module")
def four(shared_cluster: Cluster) -> WorkerGroup:
    """Group "four" of four, for tests that leave it as they found it."""
    return launch(shared_cluster, 4, "four")


@pytest.fixture
def fresh(shared_cluster: Cluster) -> Iterator[Launch]:
    """Launches groups that end with the test: `fresh(count, name, cls)`."""
    groups: list[WorkerGroup] = []

    def start(count: int, name: str = "talk", cls: type = Talker) -> WorkerGroup:
        groups.append(launch(shared_cluster, count, name, cls))
        return groups[-1]

    yield start
    for group in groups:
        group._close()


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def two_nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallRun]:
    """A run inside this process whose members may be on two nodes."""
    run = SmallRun(tmp_path, num_nodes=2, encryption=request.param)
    yield run
    run.close()


@pytest.fixture
def small_run(tmp_path: Path) -> Iterator[SmallRun]:
    """A run inside this process."""
    run = SmallRun(tmp_path)
    yield run
    run.close()
