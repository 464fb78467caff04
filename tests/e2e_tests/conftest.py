"""Whole jobs: one cluster at a time."""

from __future__ import annotations

import pytest

from rlinf.scheduler import Cluster


@pytest.fixture(autouse=True)
def _the_shared_cluster_has_ended(request: pytest.FixtureRequest) -> None:
    """Ends the cluster that all tests of `embodied` share, before others make their own."""
    if "embodied" not in request.path.parts and Cluster.has_initialized():
        Cluster.current().shutdown()
