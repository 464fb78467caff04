"""What a resource rank means: the n-th accelerator, robot, CPU slot or node of some node groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlinf.config.placement.components import ComponentSpec, ProcessPlan, resolve
from rlinf.config.placement.errors import did_you_mean
from rlinf.config.placement.ranks import Limit, format_ranks

ACCELERATOR = "accelerator"
CPU = "cpu"
NODE = "node"

_KIND_NAMES = {ACCELERATOR: "accelerators", CPU: "CPU slots", NODE: "nodes"}
_GROW = {
    ACCELERATOR: "add nodes or accelerators",
    CPU: "raise cluster.cpu_slots_per_node",
    NODE: "raise cluster.num_nodes; if the nodes have accelerators and no cluster is running,"
    " say how many with cluster.num_gpus_per_node",
}

CountHardware = Callable[[int, str], int]
"""How many pieces of a kind of hardware a node has: ``(node_rank, kind) -> count``."""


class GroupLike(Protocol):
    """What is needed to know of a node group."""

    label: str
    hardware_type: str | None
    ignore_hardware: bool

    @property
    def node_ranks(self) -> tuple[int, ...]:
        """Ranks of the nodes in the group, ascending."""


@dataclass(frozen=True)
class Resource:
    """One thing that processes are placed on."""

    kind: str
    """``accelerator``, ``cpu``, ``node``, or a hardware type such as ``Franka``."""
    node_rank: int
    local_rank: int
    """Which one of its kind on its node."""
    node_group: str
    """Label of the group through which it was selected."""


def kind_name(kind: str) -> str:
    """Return the plural of a kind, for messages."""
    return _KIND_NAMES.get(kind, kind)


def resource_kind(group: GroupLike, count: CountHardware, cpu_slots: int | None) -> str:
    """Return what ranks of a group count: its hardware, else accelerators, CPU slots, nodes."""
    if group.ignore_hardware:
        return NODE
    if group.hardware_type:
        return group.hardware_type
    if any(count(rank, ACCELERATOR) for rank in group.node_ranks):
        return ACCELERATOR
    return CPU if cpu_slots else NODE


def select_resources(
    groups: Sequence[GroupLike],
    count: CountHardware,
    cpu_slots: int | None,
    *,
    as_nodes: bool = False,
) -> list[Resource]:
    """Return the resources of some groups in rank order.

    Args:
        groups: The groups; their resources are numbered one after the other.
        count: How much hardware each node has.
        cpu_slots: CPU slots of a node without accelerators, if it has any.
        as_nodes: Count nodes whatever hardware there is. It is also so when one of several
            groups has nothing but nodes to offer.
    """
    kinds = [resource_kind(group, count, cpu_slots) for group in groups]
    if as_nodes or NODE in kinds:
        kinds = [NODE] * len(kinds)
    resources: list[Resource] = []
    for group, kind in zip(groups, kinds, strict=True):
        for rank in group.node_ranks:
            if kind == NODE:
                size = 1
            elif kind == CPU:
                size = cpu_slots or 0
            else:
                size = count(rank, kind)
            resources.extend(Resource(kind, rank, i, group.label) for i in range(size))
    return resources


def component_resources(
    spec: ComponentSpec,
    groups: Mapping[str, GroupLike],
    count: CountHardware,
    cpu_slots: int | None,
) -> list[Resource]:
    """Return the resources that the ranks of a component count.

    Raises:
        PlacementError: For an unknown node group, or groups that share a resource.
    """
    for label in spec.node_groups:
        if label not in groups:
            raise spec.group_error(
                label,
                f"there is no node group {label!r}",
                f"one of {', '.join(groups)}",
                did_you_mean(label, groups) or "add it to cluster.node_groups",
            )
    selected = [groups[label] for label in spec.node_groups]
    resources = select_resources(selected, count, cpu_slots)
    owners: dict[tuple[str, int, int], str] = {}
    for resource in resources:
        place = (resource.kind, resource.node_rank, resource.local_rank)
        owner = owners.setdefault(place, resource.node_group)
        if owner != resource.node_group:
            raise spec.group_error(
                resource.node_group,
                f"node groups {owner!r} and {resource.node_group!r} share node"
                f" {resource.node_rank}, so its {kind_name(resource.kind)} would have two ranks",
                "node groups without common resources",
                "name only one of them, or change their node_ranks",
            )
    return resources


def resolve_component(spec: ComponentSpec, resources: Sequence[Resource]) -> list[ProcessPlan]:
    """Return the processes of a component on its resources.

    Raises:
        PlacementError: See :func:`resolve`; also when a process would need two nodes.
    """
    plans = resolve(spec, describe_limit(spec, resources))
    for plan in plans:
        used = [resources[rank] for rank in plan.resources]
        nodes = sorted({resource.node_rank for resource in used})
        if len(nodes) > 1 or len({resource.kind for resource in used}) > 1:
            many = f"nodes {format_ranks(nodes)}"
            what = many if len(nodes) > 1 else "two kinds of hardware"
            segment = next(s for s in spec.segments if plan.resources[0] in s.ranks(len(resources)))
            raise spec.source.error(
                f"process {plan.rank} would use ranks {format_ranks(plan.resources)} on {what}",
                segment.span,
                "a process lives on one node and uses one kind of hardware",
                "give each process fewer ranks, or start the piece at the first rank of a node",
            )
    return plans


def describe_limit(spec: ComponentSpec, resources: Sequence[Resource]) -> Limit:
    """Return how many ranks a component can choose from, with words for messages."""
    labels = spec.node_groups
    owner = "this cluster"
    if spec.group_text:
        shown = " and ".join(map(repr, labels))
        owner = f"node group {shown}" if len(labels) == 1 else f"the union of {shown}"
    kinds = list(dict.fromkeys(resource.kind for resource in resources))
    grow = _GROW.get(kinds[0], "") if len(kinds) == 1 else ""
    return Limit(len(resources), owner, "resources", ", ".join(map(kind_name, kinds)), grow)
