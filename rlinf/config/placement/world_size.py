"""How many processes each component has, from the config alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf.config.placement.components import parse_component_placement, resolve
from rlinf.config.placement.errors import PlacementError, Source, raise_all, show_yaml
from rlinf.config.placement.machine import local_accelerators
from rlinf.config.placement.node_groups import NodeGroupSpec, parse_node_groups
from rlinf.config.placement.resources import (
    ACCELERATOR,
    CountHardware,
    component_resources,
    resolve_component,
)

DEFAULT_CPU_SLOTS = 8
"""CPU slots of a one-node cluster without accelerators."""


def component_world_sizes(
    cluster_cfg: Mapping[str, Any], accelerators_per_node: int | None = None
) -> dict[str, int]:
    """Return the number of processes of each component; needs no cluster.

    On several nodes whose accelerators nobody has told (no argument, no
    ``cluster.num_gpus_per_node``, no ``cluster.cpu_slots_per_node``), ranks of a group without a
    hardware type are not checked against a count: it is unknown until the cluster runs.

    Args:
        cluster_cfg: The ``cluster`` section.
        accelerators_per_node: Accelerators of each node; see :func:`assumed_accelerators`.

    Raises:
        PlacementError: Holds every mistake in the section.
    """
    accelerators = assumed_accelerators(cluster_cfg, accelerators_per_node)
    cpu_slots = cpu_slots_per_node(cluster_cfg)
    groups = parse_node_groups(cluster_cfg.get("node_groups"), node_count(cluster_cfg))
    errors: list[PlacementError] = []
    specs = parse_component_placement(cluster_cfg.get("component_placement"), errors)
    count = configured_hardware(groups, accelerators or 0)
    sizes: dict[str, int] = {}
    for name, spec in specs.items():
        try:
            resources = component_resources(spec, groups, count, cpu_slots)
            told = (
                accelerators is not None
                or cpu_slots is not None
                or any(
                    groups[label].ignore_hardware or groups[label].hardware_type
                    for label in spec.node_groups
                )
            )
            if told:
                plans = resolve_component(spec, resources)
            else:
                highest = max((s.resources.last for s in spec.segments if s.resources), default=0)
                plans = resolve(spec, max(len(resources), highest + 1))
            sizes[name] = len(plans)
        except PlacementError as error:
            errors.append(error)
    raise_all(errors)
    return sizes


def node_count(cluster_cfg: Mapping[str, Any]) -> int:
    """``cluster.num_nodes``, 1 if unset."""
    return whole_number(cluster_cfg, "num_nodes", minimum=1) or 1


def cpu_slots_per_node(cluster_cfg: Mapping[str, Any], num_nodes: int | None = None) -> int | None:
    """CPU slots of a node without accelerators; ``None`` means that its ranks are nodes.

    ``cluster.cpu_slots_per_node`` if set. On one node the default is
    ``cluster.num_gpus_per_node``, which the slots stand in for, or else 8.
    """
    slots = whole_number(cluster_cfg, "cpu_slots_per_node", minimum=1)
    if slots is None and (num_nodes or node_count(cluster_cfg)) == 1:
        return whole_number(cluster_cfg, "num_gpus_per_node", minimum=0) or DEFAULT_CPU_SLOTS
    return slots


def assumed_accelerators(
    cluster_cfg: Mapping[str, Any], accelerators_per_node: int | None = None
) -> int | None:
    """Return the accelerators of a node when there is no cluster to ask; ``None`` if nobody knows.

    The argument, else ``cluster.num_gpus_per_node``, else what this machine has if the cluster is
    one node.
    """
    if accelerators_per_node is not None:
        return accelerators_per_node
    configured = whole_number(cluster_cfg, "num_gpus_per_node", minimum=0)
    if configured is None and node_count(cluster_cfg) == 1:
        return len(local_accelerators()[1])
    return configured


def configured_hardware(groups: Mapping[str, NodeGroupSpec], accelerators: int) -> CountHardware:
    """Hardware of each node as the config has it.

    A group that names a hardware type without configs counts one piece on each of its nodes.
    """

    def count(node_rank: int, kind: str) -> int:
        if kind == ACCELERATOR:
            return accelerators
        total = 0
        for group in groups.values():
            if group.hardware_type == kind and node_rank in group.node_ranks:
                ranks = [config["node_rank"] for config in group.hardware_configs]
                total += ranks.count(node_rank) if ranks else 1
        return total

    return count


def whole_number(cluster_cfg: Mapping[str, Any], key: str, minimum: int) -> int | None:
    """Return a number of the ``cluster`` section; ``None`` if it is not set."""
    value = cluster_cfg.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise Source(f"cluster.{key}", show_yaml(value)).error(
            "is not usable", allowed=f"a whole number from {minimum} upwards"
        )
    return value
