"""Clusters, placement, workers and how they exchange data; knows nothing of learning.

Names are imported when they are first used, so that a worker process starts with little to load.
"""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "rlinf.scheduler.channel.channel": ["UNTIL_CLOSED", "Channel"],
    "rlinf.scheduler.channel.errors": [
        "ChannelClosed",
        "ChannelEmpty",
        "ChannelError",
        "ChannelFull",
        "ItemLost",
    ],
    "rlinf.scheduler.cluster.cluster": ["Cluster"],
    "rlinf.scheduler.cluster.run_files": ["RunFiles"],
    "rlinf.scheduler.topology.node": ["NodeGroupInfo", "NodeInfo"],
    "rlinf.scheduler.topology.topology": ["ClusterTopology"],
    "rlinf.scheduler.collective.options": ["CollectiveGroupOptions"],
    "rlinf.scheduler.collective.work": ["Work"],
    "rlinf.scheduler.errors": [
        "CallCancelled",
        "ClusterError",
        "ConnectionBroken",
        "PeerLost",
        "SchedulerError",
        "WaitTimeout",
        "WorkerDied",
        "WorkerException",
    ],
    "rlinf.scheduler.hardware": [
        "AcceleratorType",
        "AcceleratorUtil",
        "FrankaHWInfo",
        "Hardware",
        "HardwareInfo",
        "NodeHardwareConfig",
        "Turtle2HWInfo",
    ],
    "rlinf.scheduler.placement": [
        "ComponentPlacement",
        "FlexiblePlacementStrategy",
        "HybridComponentPlacement",
        "ModelParallelComponentPlacement",
        "NodePlacementStrategy",
        "PackedPlacementStrategy",
        "Placement",
        "PlacementStrategy",
    ],
    "rlinf.scheduler.address": ["WorkerAddress", "WorkerInfo"],
    "rlinf.scheduler.worker.group": ["WorkerGroup"],
    "rlinf.scheduler.worker.handle": ["WorkerGroupFuncResult", "wait_all", "wait_beside"],
    "rlinf.scheduler.worker.launched": ["Scatter"],
    "rlinf.scheduler.worker.recovery": [
        "begin_exchange",
        "call_off",
        "end_process",
        "give_up",
        "new_deaths",
        "registered_info",
        "responds",
        "wait_restarted",
    ],
    "rlinf.scheduler.worker.worker": ["Worker"],
    "rlinf.scheduler.env_vars": ["ClusterEnvVar"],
    "rlinf.config.placement": ["PlacementError"],
    "rlinf.config.schema.cluster": ["ClusterConfig"],
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
