"""From ``cluster.component_placement`` to a strategy for each component."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from rlinf.config.placement import (
    ComponentSpec,
    PlacementError,
    ProcessPlan,
    Resource,
    parse_component_placement,
)
from rlinf.config.placement.components import PATH
from rlinf.config.placement.errors import Source, did_you_mean, raise_all
from rlinf.config.placement.resources import NODE, component_resources, resolve_component
from rlinf.scheduler.current import current_runtime
from rlinf.scheduler.placement.base import Placement, PlacementStrategy
from rlinf.scheduler.placement.flexible import FlexiblePlacementStrategy
from rlinf.scheduler.placement.node import NodePlacementStrategy

if TYPE_CHECKING:
    from rlinf.scheduler.topology.topology import ClusterTopology


class PlacementMode(str, Enum):
    """How the components of a run share the cluster."""

    COLLOCATED = "collocated"
    """All on the same resources."""
    DISAGGREGATED = "disaggregated"
    """Each on resources of its own."""
    HYBRID = "hybrid"
    """Some resources are shared."""


class ComponentPlacement:
    """Where every component of a config goes."""

    def __init__(self, cfg: Mapping[str, Any], cluster: Any = None) -> None:
        """Check and resolve the placement of all components.

        Args:
            cfg: The config; its ``cluster`` section is read.
            cluster: A ``ClusterTopology`` or an object that has one as ``topology``; the
                one of the run by default.

        Raises:
            PlacementError: Holds every mistake in the placement.
            RuntimeError: If no cluster is given and none is running.
        """
        if cluster is None:
            cluster = current_runtime().registry.ask("take", key="topology")
        self.topology: ClusterTopology = getattr(cluster, "topology", cluster)
        self._cfg = cfg
        section = cfg.get("cluster")
        if not isinstance(section, Mapping):
            raise PlacementError("cluster", "the config has no cluster section")
        self._specs = parse_component_placement(section.get("component_placement"))
        self._resources: dict[str, list[Resource]] = {}
        self._plans: dict[str, list[ProcessPlan]] = {}
        errors: list[PlacementError] = []
        for name, spec in self._specs.items():
            try:
                resources = component_resources(
                    spec,
                    self.topology.node_groups,
                    self.topology.count_hardware,
                    self.topology.cpu_slots_per_node,
                )
                self._resources[name] = resources
                self._plans[name] = resolve_component(spec, resources)
            except PlacementError as error:
                errors.append(error)
        raise_all(errors)

    @property
    def components(self) -> list[str]:
        """Names of the components, in the order written."""
        return list(self._specs)

    @property
    def placement_mode(self) -> PlacementMode:
        """How the components share resources."""
        used = [self.devices(name) for name in self._specs]
        if all(devices == used[0] for devices in used):
            return PlacementMode.COLLOCATED
        if sum(map(len, used)) == len(set().union(*used)):
            return PlacementMode.DISAGGREGATED
        return PlacementMode.HYBRID

    def get_strategy(self, name: str) -> PlacementStrategy:
        """Return the strategy that places a component."""
        spec = self.get_spec(name)
        ranks = [list(plan.resources) for plan in self._plans[name]]
        if self._resources[name][0].kind == NODE:
            return NodePlacementStrategy([process[0] for process in ranks], spec.node_groups)
        return FlexiblePlacementStrategy(ranks, spec.node_groups)

    def get_world_size(self, name: str) -> int:
        """Return the number of processes of a component."""
        return len(self.get_strategy(name).ranks_of_processes())

    def get_hardware_ranks(self, name: str) -> list[int]:
        """Resource ranks that a component uses, ascending, counted in its node groups."""
        self.get_spec(name)
        return sorted({rank for plan in self._plans[name] for rank in plan.resources})

    def get_placement(self, name: str) -> list[Placement]:
        """Return the placements of a component's processes."""
        return self.get_strategy(name).get_placement(self.topology)

    def get_spec(self, name: str) -> ComponentSpec:
        """Return what the user wrote for a component."""
        if name not in self._specs:
            raise Source(PATH, name).error(
                f"component {name!r} has no placement",
                allowed=f"one of {', '.join(self._specs)}",
                fix=did_you_mean(name, self._specs) or f"add {name}: <ranks>",
            )
        return self._specs[name]

    def devices(self, name: str) -> set[tuple[str, int, int]]:
        """Return what a component uses, as ``(kind, node_rank, local_rank)`` whatever the group."""
        ranks = self.get_hardware_ranks(name)
        used = [self._resources[name][rank] for rank in ranks]
        return {(r.kind, r.node_rank, r.local_rank) for r in used}


class HybridComponentPlacement(ComponentPlacement):
    """Components may share resources in any way; for embodied training."""

    @property
    def placement_mode(self) -> PlacementMode:
        """Always hybrid."""
        return PlacementMode.HYBRID
