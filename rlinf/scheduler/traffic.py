"""Counters of what moved between processes, as metrics."""

from __future__ import annotations

from typing import Any

Traffic = dict[str, dict[str, Any]]
"""By worker: what it sent and received, by peer."""


def traffic_metrics(traffic: Traffic, channels: dict[str, dict[str, float]]) -> dict[str, float]:
    """Flatten counters into metrics.

    Args:
        traffic: counters of each worker, as from `Cluster.traffic`.
        channels: counters of each channel, as from `Cluster.channel_stats`.

    Returns:
        `comm/<sender>-<receiver>/items` and `/bytes` by group, `comm/<channel>/...` by channel, and
        `time/wait/...` in seconds.
    """
    out: dict[str, float] = {}
    for worker, counters in traffic.items():
        receiver = worker.partition(":")[0]
        for peer, counter in counters["received"].items():
            pair = f"{peer.partition(':')[0]}-{receiver}"
            for label in ("items", "bytes"):
                key = f"comm/{pair}/{label}"
                out[key] = out.get(key, 0.0) + counter[label]
            key = f"time/wait/{pair}"
            out[key] = out.get(key, 0.0) + counter["wait_seconds"]
    for name, stats in channels.items():
        for label in ("puts", "gets", "put_bytes", "depth", "bytes", "max_depth"):
            out[f"comm/{name}/{label}"] = float(stats[label])
        out[f"time/wait/{name}/put"] = stats["put_wait_seconds"]
        out[f"time/wait/{name}/get"] = stats["get_wait_seconds"]
    return out
