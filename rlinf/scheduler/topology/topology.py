"""Everything placement needs to know of a cluster, as plain data."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rlinf.config.placement.errors import PlacementError, Source
from rlinf.config.placement.node_groups import (
    CLUSTER_GROUP,
    NODE_GROUP,
    NodeGroupSpec,
    parse_node_groups,
)
from rlinf.config.placement.ranks import format_ranks
from rlinf.config.placement.resources import ACCELERATOR, Resource, select_resources
from rlinf.config.placement.world_size import (
    assumed_accelerators,
    configured_hardware,
    cpu_slots_per_node,
    node_count,
    whole_number,
)
from rlinf.scheduler.env_vars import ClusterEnvVar
from rlinf.scheduler.hardware import (
    AcceleratorType,
    Hardware,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
    accelerator_resource,
)
from rlinf.scheduler.topology.node import NodeGroupInfo, NodeInfo

NODE_RANK = ClusterEnvVar.NODE_RANK.full_name
_RESERVED = 2  # parse_node_groups puts the reserved groups first.


class NodeRankError(ValueError):
    """The nodes of a cluster cannot be ranked."""


class ClusterTopology:
    """The nodes of a cluster, their groups and their resources.

    Attributes:
        nodes: Nodes in rank order.
        node_groups: Groups by label, always with ``"cluster"`` and ``"node"``.
        cpu_slots_per_node: CPU slots of a node without accelerators; ``None`` means that the ranks
            of such nodes are the nodes themselves.
    """

    def __init__(
        self,
        nodes: Sequence[NodeInfo],
        node_groups: Sequence[NodeGroupInfo] = (),
        cpu_slots_per_node: int | None = None,
    ) -> None:
        """Add the reserved groups to the given ones."""
        self.nodes = list(nodes)
        self.cpu_slots_per_node = cpu_slots_per_node
        slots = cpu_slots_per_node
        reserved = [
            NodeGroupInfo(CLUSTER_GROUP, self.nodes, cpu_slots_per_node=slots),
            NodeGroupInfo(NODE_GROUP, self.nodes, ignore_hardware=True),
        ]
        self.node_groups = {group.label: group for group in [*reserved, *node_groups]}

    @classmethod
    def from_config(
        cls, cluster_cfg: Mapping[str, Any] | None, nodes: Sequence[NodeInfo]
    ) -> ClusterTopology:
        """Build the node groups of a config on the nodes of a cluster.

        Args:
            cluster_cfg: The ``cluster`` section, or ``None`` for none.
            nodes: The nodes, ranked ``0..n-1`` (see :func:`rank_nodes`).

        Raises:
            PlacementError: For a mistake in ``node_groups``, or hardware that nodes do not have.
        """
        cluster_cfg = cluster_cfg or {}
        specs = parse_node_groups(cluster_cfg.get("node_groups"), len(nodes))
        labels = {
            node.node_rank: [s.label for s in specs.values() if node.node_rank in s.node_ranks]
            for node in nodes
        }
        limit = whole_number(cluster_cfg, "num_gpus_per_node", minimum=0)
        ranked = [
            dataclasses.replace(_limit_accelerators(n, limit), node_labels=labels[n.node_rank])
            for n in sorted(nodes, key=lambda node: node.node_rank)
        ]
        slots = cpu_slots_per_node(cluster_cfg, len(nodes))
        groups = []
        for spec in list(specs.values())[_RESERVED:]:
            members = [ranked[rank] for rank in spec.node_ranks]
            _check_hardware(spec, members)
            groups.append(
                NodeGroupInfo(
                    spec.label,
                    members,
                    spec.hardware_type,
                    spec.ignore_hardware,
                    spec.env_configs,
                    slots,
                )
            )
        return cls(ranked, groups, slots)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @property
    def num_accelerators(self) -> int:
        """Number of accelerators of all nodes."""
        return sum(node.num_accelerators for node in self.nodes)

    @property
    def accelerator_ranks(self) -> list[list[int]]:
        """For each node, the cluster-wide ranks of its accelerators."""
        ranks, start = [], 0
        for node in self.nodes:
            ranks.append(list(range(start, start + node.num_accelerators)))
            start += node.num_accelerators
        return ranks

    def get_node_info(self, node_rank: int) -> NodeInfo:
        """Return a node by its rank."""
        if not 0 <= node_rank < len(self.nodes):
            raise ValueError(f"there is no node {node_rank}: this cluster has {len(self.nodes)}")
        return self.nodes[node_rank]

    def get_node_group(self, label: str = CLUSTER_GROUP) -> NodeGroupInfo | None:
        """Return a node group by its label; ``None`` if there is none."""
        return self.node_groups.get(label)

    def resources(self, labels: Sequence[str], as_nodes: bool = False) -> list[Resource]:
        """Return the resources of some node groups, numbered one after the other.

        Args:
            labels: Labels of the groups.
            as_nodes: Count nodes whatever hardware they have.
        """
        groups = [self.node_groups[label] for label in labels]
        return select_resources(
            groups, self.count_hardware, self.cpu_slots_per_node, as_nodes=as_nodes
        )

    def count_hardware(self, node_rank: int, kind: str) -> int:
        """Return how many pieces of a kind of hardware a node has."""
        return self.nodes[node_rank].get_hw_resource_count(kind)


def assume_topology(
    cluster_cfg: Mapping[str, Any], accelerators_per_node: int | None = None
) -> ClusterTopology:
    """Return the topology that a config describes, with invented nodes, when there is no cluster.

    Args:
        cluster_cfg: The ``cluster`` section.
        accelerators_per_node: Accelerators of each node; else ``cluster.num_gpus_per_node``, else
            what this machine has if the cluster is one node, else none.
    """
    num_nodes = node_count(cluster_cfg)
    accelerators = assumed_accelerators(cluster_cfg, accelerators_per_node) or 0
    specs = parse_node_groups(cluster_cfg.get("node_groups"), num_nodes)
    hardware_of_nodes(cluster_cfg, num_nodes)
    count = configured_hardware(specs, accelerators)
    types = {s.hardware_type for s in specs.values() if s.hardware_type} - {ACCELERATOR}
    nodes = []
    for rank in range(num_nodes):
        devices = [(str(i), "assumed") for i in range(accelerators)]
        resources = [accelerator_resource(AcceleratorType.NV_GPU, devices)]
        for kind in sorted(types):
            infos = [HardwareInfo(kind, "assumed") for _ in range(count(rank, kind))]
            resources.append(HardwareResource(kind, infos))
        found = [resource for resource in resources if resource and resource.count]
        cpus = os.cpu_count() or 1
        nodes.append(NodeInfo(rank, is_head=rank == 0, num_cpus=cpus, hardware_resources=found))
    # The number of accelerators is settled; what the config says of it must not be applied twice.
    settled = {k: cluster_cfg.get(k) for k in cluster_cfg if k != "num_gpus_per_node"}
    settled["cpu_slots_per_node"] = cpu_slots_per_node(cluster_cfg)
    return ClusterTopology.from_config(settled, nodes)


def hardware_of_nodes(
    cluster_cfg: Mapping[str, Any] | None, num_nodes: int
) -> dict[int, list[dict[str, Any]]]:
    """Return the hardware to look for on each node: ``{node_rank: [{type, configs}, ...]}``.

    The list of a node goes to :func:`rlinf.scheduler.hardware.enumerate_hardware` there. An entry
    without configs lets the type configure itself from the environment of the node.

    Raises:
        PlacementError: For an unknown hardware type or field.
    """
    specs = parse_node_groups((cluster_cfg or {}).get("node_groups"), num_nodes)
    result: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(num_nodes)}
    for index, spec in enumerate(list(specs.values())[_RESERVED:]):
        if spec.hardware_type is None:
            continue
        path = f"cluster.node_groups[{index}].hardware"
        Hardware.get(spec.hardware_type, f"{path}.type")
        for i, entry in enumerate(spec.hardware_configs):
            NodeHardwareConfig.from_mapping(spec.hardware_type, entry, f"{path}.configs[{i}]")
        for rank in spec.node_ranks:
            configs = [c for c in spec.hardware_configs if c["node_rank"] == rank]
            if configs or not spec.hardware_configs:
                result[rank].append({"type": spec.hardware_type, "configs": configs})
    return result


def rank_nodes(
    found: Sequence[NodeInfo],
    num_nodes: int | None = None,
    *,
    has_node_groups: bool = False,
    gaps: bool = False,
) -> tuple[list[NodeInfo], list[NodeInfo]]:
    """Give every node its rank.

    If all nodes have RLINF_NODE_RANK in ``default_env_vars``, that is the rank. If none has it:
    the head first, then by accelerator type, then by IP address as a number.

    Args:
        found: The nodes, in any order.
        num_nodes: How many the cluster shall have; all that were found if ``None`` or 0.
        has_node_groups: Whether the config has ``node_groups``. It names nodes by rank, so on
            several nodes every one must then have RLINF_NODE_RANK.
        gaps: Whether nodes of some ranks have been lost; those that are left keep their order.

    Returns:
        The nodes of the cluster in rank order, and those left over.

    Raises:
        NodeRankError: If ranks are missing, repeated or not numbers, or nodes are too few.
    """
    num_nodes = num_nodes or len(found)
    with_rank = [node for node in found if NODE_RANK in node.default_env_vars]
    without = [node for node in found if NODE_RANK not in node.default_env_vars]
    if with_rank and without:
        raise NodeRankError(
            f"{NODE_RANK} is set on {_names(with_rank)}, but not on {_names(without)}. Export it"
            " on every node before `ray start`, or on none."
        )
    if without and has_node_groups and num_nodes > 1:
        raise NodeRankError(
            f"cluster.node_groups names nodes by rank, so {NODE_RANK} must be set on every node"
            f" before `ray start`. It is set on none. {_export_advice(found)}"
        )
    if with_rank:
        order = _by_given_rank(found, num_nodes, gaps)
    else:
        order = sorted(found, key=_natural_order)
    if len(order) < num_nodes:
        raise NodeRankError(f"the cluster needs {num_nodes} nodes, found {len(order)}")
    kept = [dataclasses.replace(n, node_rank=rank) for rank, n in enumerate(order[:num_nodes])]
    if any(node.is_head for node in found) and not any(node.is_head for node in kept):
        raise NodeRankError(
            f"the head node must be one of the {num_nodes} nodes of the cluster, but its"
            f" {NODE_RANK} is {num_nodes} or more. Export a lower one there."
        )
    return kept, order[num_nodes:]


def _by_given_rank(found: Sequence[NodeInfo], num_nodes: int, gaps: bool) -> list[NodeInfo]:
    by_rank: dict[int, NodeInfo] = {}
    for node in found:
        text = node.default_env_vars[NODE_RANK].strip()
        if not (text.isascii() and text.isdecimal()):
            raise NodeRankError(
                f"{NODE_RANK} is {text!r} on {node}. Use whole numbers from 0 to {num_nodes - 1}."
            )
        if int(text) in by_rank:
            raise NodeRankError(
                f"{NODE_RANK} is {text} on both {by_rank[int(text)]} and {node}. Give every node"
                " its own rank and restart Ray there."
            )
        by_rank[int(text)] = node
    missing = [rank for rank in range(num_nodes) if rank not in by_rank]
    if missing and not gaps:
        raise NodeRankError(
            f"{NODE_RANK} {format_ranks(missing)} of {num_nodes} nodes is missing; found"
            f" {', '.join(f'{rank} on {by_rank[rank]}' for rank in sorted(by_rank))}. Ranks are"
            " contiguous from 0; export the missing ones before `ray start`."
        )
    return [by_rank[rank] for rank in sorted(by_rank)]


def _natural_order(node: NodeInfo) -> tuple[Any, ...]:
    kind = list(AcceleratorType).index(node.accelerator_type)
    try:
        address = ipaddress.ip_address(node.node_ip)
        place = (address.version, int(address), "")
    except ValueError:
        place = (0, 0, node.node_ip)
    return (not node.is_head, kind, *place, node.ray_id)


def _export_advice(found: Sequence[NodeInfo]) -> str:
    order = sorted(found, key=_natural_order)
    return "For example: " + "; ".join(
        f"on {node}: export {NODE_RANK}={rank}" for rank, node in enumerate(order)
    )


def _names(nodes: Sequence[NodeInfo]) -> str:
    return ", ".join(map(str, nodes))


def _limit_accelerators(node: NodeInfo, limit: int | None) -> NodeInfo:
    """Return the node with its first ``limit`` accelerators; one without any is left as it is."""
    have = node.num_accelerators
    if limit is None or have in (0, limit):
        return node
    if have < limit:
        raise Source("cluster.num_gpus_per_node", str(limit)).error(
            f"node {node.node_rank} ({node}) has only {have} accelerators",
            allowed=f"at most {have}, or leave it out to use what each node has",
        )
    resources = [r for r in node.hardware_resources if r.type != ACCELERATOR]
    kept = [(device.device_id, device.model) for device in node.accelerators[:limit]]
    accelerators = accelerator_resource(node.accelerator_type, kept)
    return dataclasses.replace(
        node, hardware_resources=[*([accelerators] if accelerators else []), *resources]
    )


def _check_hardware(spec: NodeGroupSpec, nodes: Sequence[NodeInfo]) -> None:
    if spec.hardware_type is None:
        return
    wanted = [config["node_rank"] for config in spec.hardware_configs]
    for node in nodes:
        need = wanted.count(node.node_rank) if wanted else 1
        have = node.get_hw_resource_count(spec.hardware_type)
        if have < need:
            raise PlacementError(
                "cluster.node_groups",
                f"node group {spec.label!r} needs {need} {spec.hardware_type} on node"
                f" {node.node_rank} ({node}), which has {have}",
                allowed="hardware that the node reports",
                fix="check hardware.configs, or the variables exported on the node",
            )
