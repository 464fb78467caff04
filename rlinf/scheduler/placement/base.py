"""A placement says where one process runs; a strategy makes the placements of a worker group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.config.placement import PlacementError, Resource, format_ranks
from rlinf.config.placement.errors import did_you_mean
from rlinf.config.placement.node_groups import CLUSTER_GROUP
from rlinf.config.placement.resources import ACCELERATOR, CPU, NODE
from rlinf.scheduler.hardware import AcceleratorType, AcceleratorUtil

if TYPE_CHECKING:
    from rlinf.scheduler.topology.topology import ClusterTopology

NO_DEVICE = -1


@dataclass(frozen=True)
class Placement:
    """Where one process of a worker group runs, and what it sees there."""

    rank: int
    """Rank of the process in its group."""
    cluster_node_rank: int
    """Rank of its node in the cluster."""
    placement_node_rank: int
    """Rank of its node among the nodes that the group uses."""
    local_accelerator_rank: int
    """Its first accelerator, counted on its node; -1 if it has none of its own."""
    accelerator_type: AcceleratorType
    local_rank: int
    """Its rank among the processes of the group on its node."""
    local_world_size: int
    """Number of processes of the group on its node."""
    visible_accelerators: tuple[str, ...]
    """Ids of the devices that it sees, as the visible-devices variable of its node has them."""
    isolate_accelerator: bool
    """Whether it sees no accelerators but its own."""
    local_hardware_ranks: tuple[int, ...]
    """Its accelerators, robots or CPU slots, counted on its node; empty if it has the node."""
    node_group_label: str
    resource_kind: str = ACCELERATOR
    """What ``local_hardware_ranks`` count: ``accelerator``, ``cpu``, ``node`` or a robot type."""

    @property
    def device_env(self) -> dict[str, str]:
        """Variables that give the process exactly its visible devices."""
        return AcceleratorUtil.get_device_env(self.accelerator_type, self.visible_accelerators)


class PlacementStrategy:
    """Chooses the resources of each process of a worker group."""

    def __init__(self, node_group: str | Sequence[str] | None = None) -> None:
        """Place on the resources of one or several node groups.

        Args:
            node_group: Label, or labels whose resources are numbered one after the other; the
                whole cluster by default.
        """
        labels = [node_group] if isinstance(node_group, str) else list(node_group or ())
        self.node_groups: tuple[str, ...] = tuple(labels) or (CLUSTER_GROUP,)

    def get_placement(self, cluster: Any, isolate_accelerator: bool = True) -> list[Placement]:
        """Return the placements of all processes in rank order.

        Args:
            cluster: A ``ClusterTopology``, or an object that has one as ``topology``.
            isolate_accelerator: Hide the accelerators of other processes.

        Raises:
            PlacementError: If the resources do not exist or cannot be used together.
        """
        topology: ClusterTopology = getattr(cluster, "topology", cluster)
        for label in self.node_groups:
            if label not in topology.node_groups:
                raise self.error(
                    f"there is no node group {label!r}",
                    allowed=f"one of {', '.join(topology.node_groups)}",
                    fix=did_you_mean(label, topology.node_groups),
                )
        resources = self.resources(topology)
        processes = []
        for rank, ranks in enumerate(self.ranks_of_processes()):
            for r in ranks:
                if not 0 <= r < len(resources):
                    raise self.error(
                        f"rank {r} is out of range",
                        allowed=f"{len(resources)} resources, ranks 0-{len(resources) - 1}",
                    )
            used = [resources[r] for r in ranks]
            if len({(u.node_rank, u.kind) for u in used}) > 1:
                nodes = sorted({u.node_rank for u in used})
                raise self.error(
                    f"process {rank} would use ranks {format_ranks(ranks)} of nodes"
                    f" {format_ranks(nodes)}",
                    allowed="a process lives on one node and uses one kind of hardware",
                )
            processes.append(used)
        return _place(processes, topology, isolate_accelerator)

    def ranks_of_processes(self) -> list[list[int]]:
        """Resource ranks of each process, in process order."""
        raise NotImplementedError

    def resources(self, topology: ClusterTopology) -> list[Resource]:
        """Return the resources that ranks count."""
        return topology.resources(self.node_groups)

    def error(self, problem: str, allowed: str = "", fix: str = "") -> PlacementError:
        """Return an error of this strategy."""
        return PlacementError(str(self), problem, allowed=allowed, fix=fix)


def _place(
    processes: Sequence[Sequence[Resource]], topology: ClusterTopology, isolate: bool
) -> list[Placement]:
    sizes = Counter(used[0].node_rank for used in processes)
    places = {node_rank: place for place, node_rank in enumerate(sorted(sizes))}
    before: Counter[int] = Counter()
    placements: list[Placement] = []
    for rank, used in enumerate(processes):
        kind, node_rank = used[0].kind, used[0].node_rank
        node = topology.get_node_info(node_rank)
        own = tuple(dict.fromkeys(resource.local_rank for resource in used))
        # Only accelerators can be isolated: a robot or a whole node comes with all devices.
        isolated = isolate and kind in (ACCELERATOR, CPU)
        visible = tuple(device.device_id for device in node.accelerators)
        if isolated:
            visible = tuple(visible[i] for i in own) if kind == ACCELERATOR else ()
        placements.append(
            Placement(
                rank=rank,
                cluster_node_rank=node_rank,
                placement_node_rank=places[node_rank],
                local_accelerator_rank=own[0] if kind == ACCELERATOR else NO_DEVICE,
                accelerator_type=node.accelerator_type if kind != CPU else AcceleratorType.NO_ACCEL,
                local_rank=before[node_rank],
                local_world_size=sizes[node_rank],
                visible_accelerators=visible,
                isolate_accelerator=isolated,
                local_hardware_ranks=own if kind != NODE else (),
                node_group_label=used[0].node_group,
                resource_kind=kind,
            )
        )
        before[node_rank] += 1
    return placements
