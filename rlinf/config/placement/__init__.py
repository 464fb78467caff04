"""Where the processes of a run go, as the config says it: grammar, node groups, world sizes."""

from rlinf.config.placement.components import (
    ComponentSpec,
    ProcessPlan,
    parse_component_placement,
    resolve,
)
from rlinf.config.placement.errors import PlacementError
from rlinf.config.placement.machine import local_accelerators
from rlinf.config.placement.node_groups import EnvConfig, NodeGroupSpec, parse_node_groups
from rlinf.config.placement.ranks import Limit, format_ranks, parse_ranks
from rlinf.config.placement.resources import Resource
from rlinf.config.placement.world_size import (
    assumed_accelerators,
    component_world_sizes,
    cpu_slots_per_node,
    node_count,
)

__all__ = [
    "ComponentSpec",
    "EnvConfig",
    "Limit",
    "NodeGroupSpec",
    "PlacementError",
    "ProcessPlan",
    "Resource",
    "assumed_accelerators",
    "component_world_sizes",
    "cpu_slots_per_node",
    "format_ranks",
    "local_accelerators",
    "node_count",
    "parse_component_placement",
    "parse_node_groups",
    "parse_ranks",
    "resolve",
]
