"""The cluster that tests share, as if each test had one of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rlinf.scheduler import Cluster


@pytest.fixture
def own_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Knows nothing of the failures of other tests; its deadlines are for one test."""
    reporter, deadlines = cluster._on_driver().reporter, dict(cluster.run.timeouts)
    reporter.dealt_with(time.time())
    yield cluster
    reporter.card = None
    cluster.run.timeouts.update(deadlines)
