"""Clusters: starting or joining Ray, finding the nodes, starting and ending what runs on them."""

from __future__ import annotations

from typing import Any

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    # Workers import parts of this package and must not pay for the rest of it.
    if name == "Cluster":
        from rlinf.scheduler.cluster.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
