"""Whole jobs: most of them share one cluster; those that make their own come after it has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlinf.scheduler import Cluster

SHARING = ("embodied", "reasoning", "agent_faults")
"""Folders whose tests share a cluster, in the order in which they run."""


def _place(item: pytest.Item) -> int:
    folder = item.path.parent.name
    return SHARING.index(folder) if folder in SHARING else len(SHARING)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts tests that share a cluster first."""
    items.sort(key=_place)


@pytest.fixture(scope="session")
def cluster(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node with eight CPU slots, for all tests that share one."""
    logs = str(tmp_path_factory.mktemp("logs"))
    with Cluster(num_nodes=1, distributed_log_dir=logs) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _the_shared_cluster_has_ended(request: pytest.FixtureRequest) -> None:
    """Ends the shared cluster before tests make their own."""
    if _place(request.node) == len(SHARING) and Cluster.has_initialized():
        Cluster.current().shutdown()
