"""Placement: which process of which component runs on which node and device."""

from rlinf.config.placement import PlacementError
from rlinf.scheduler.placement.base import Placement, PlacementStrategy
from rlinf.scheduler.placement.component import (
    ComponentPlacement,
    HybridComponentPlacement,
    PlacementMode,
)
from rlinf.scheduler.placement.flexible import FlexiblePlacementStrategy
from rlinf.scheduler.placement.model_parallel import (
    ModelParallelComponentPlacement,
    ParallelSizes,
    RolloutSyncMode,
)
from rlinf.scheduler.placement.node import NodePlacementStrategy
from rlinf.scheduler.placement.packed import PackedPlacementStrategy
from rlinf.scheduler.placement.placement_map import format_placement_map

__all__ = [
    "ComponentPlacement",
    "FlexiblePlacementStrategy",
    "HybridComponentPlacement",
    "ModelParallelComponentPlacement",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "ParallelSizes",
    "Placement",
    "PlacementError",
    "PlacementMode",
    "PlacementStrategy",
    "RolloutSyncMode",
    "format_placement_map",
]
