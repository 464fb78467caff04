"""What is known of a node and of a group of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from rlinf.config.placement.node_groups import CLUSTER_GROUP, EnvConfig
from rlinf.config.placement.resources import (
    ACCELERATOR,
    NODE,
    Resource,
    resource_kind,
    select_resources,
)
from rlinf.scheduler.hardware import (
    AcceleratorInfo,
    AcceleratorType,
    HardwareInfo,
    HardwareResource,
)


@dataclass
class AliveNode:
    """A node that is there; for most runs, that Ray says is alive.

    Attributes:
        ray_id: names it.
        ip: its address.
        is_head: whether Ray was begun there.
    """

    ray_id: str
    ip: str
    is_head: bool


@dataclass
class NodeInfo:
    """A node as its probe reports it."""

    node_rank: int = -1
    """Position in the cluster; -1 until the nodes are ranked."""
    node_ip: str = ""
    ray_id: str = ""
    is_head: bool = False
    num_cpus: int = 0
    node_labels: list[str] = field(default_factory=list)
    """Labels of the node groups that it is in."""
    python_interpreter_path: str = ""
    """The interpreter that Ray runs with on the node."""
    default_env_vars: dict[str, str] = field(default_factory=dict)
    """The environment in which Ray was started on the node."""
    env_vars: dict[str, str] = field(default_factory=dict)
    """Variables that every worker on the node gets in addition."""
    hardware_resources: list[HardwareResource] = field(default_factory=list)
    profiler_backends: list[str] = field(default_factory=list)
    comm_ips: list[str] = field(default_factory=list)
    """Addresses at which its processes exchange data; `node_ip` if none is given."""

    def __post_init__(self) -> None:
        self.comm_ips = self.comm_ips or [self.node_ip]

    @property
    def accelerators(self) -> list[AcceleratorInfo]:
        """The accelerators in order of their local rank."""
        infos = self.get_hw_infos(ACCELERATOR)
        return [info for info in infos if isinstance(info, AcceleratorInfo)]

    @property
    def num_accelerators(self) -> int:
        """Number of accelerators."""
        return self.get_hw_resource_count(ACCELERATOR)

    @property
    def accelerator_type(self) -> AcceleratorType:
        """Vendor of the accelerators; ``NO_ACCEL`` without any."""
        devices = self.accelerators
        return devices[0].accelerator_type if devices else AcceleratorType.NO_ACCEL

    @property
    def accelerator_model(self) -> str:
        """Model of the first accelerator, or ``""``."""
        devices = self.accelerators
        return devices[0].model if devices else ""

    def get_hw_infos(self, hardware_type: str) -> list[HardwareInfo]:
        """Return the pieces of a hardware type on the node."""
        found = [r.infos for r in self.hardware_resources if r.type == hardware_type]
        return [info for infos in found for info in infos]

    def get_hw_resource_count(self, hardware_type: str) -> int:
        """Return how many pieces of a hardware type the node has."""
        return len(self.get_hw_infos(hardware_type))

    def __str__(self) -> str:
        """Name for messages."""
        name = self.node_ip or self.ray_id or f"node {self.node_rank}"
        return f"{name} (head)" if self.is_head else name


@dataclass
class NodeGroupInfo:
    """A labelled set of nodes, and what the ranks of a placement on it mean."""

    DEFAULT_GROUP_LABEL: ClassVar[str] = CLUSTER_GROUP
    """Label of the group of all nodes."""

    label: str
    nodes: Sequence[NodeInfo]
    hardware_type: str | None = None
    ignore_hardware: bool = False
    env_configs: Sequence[EnvConfig] = ()
    cpu_slots_per_node: int | None = None

    @property
    def node_ranks(self) -> tuple[int, ...]:
        """Ranks of the nodes."""
        return tuple(node.node_rank for node in self.nodes)

    @cached_property
    def resource_kind(self) -> str:
        """``accelerator``, ``cpu``, ``node`` or the hardware type."""
        return resource_kind(self, self._count, self.cpu_slots_per_node)

    @cached_property
    def resources(self) -> list[Resource]:
        """The resources in rank order."""
        return select_resources([self], self._count, self.cpu_slots_per_node)

    @property
    def hardware_resource_count(self) -> int:
        """Number of resource ranks: accelerators, robots, CPU slots or nodes."""
        return len(self.resources)

    @property
    def local_hardware_ranks(self) -> list[int]:
        """For each resource rank, which one of its node it is."""
        return [resource.local_rank for resource in self.resources]

    def get_node_by_hardware_rank(self, hardware_rank: int) -> NodeInfo:
        """Return the node that has a resource rank."""
        return self.get_node(self._resource(hardware_rank).node_rank)

    def get_local_hardware_rank(self, hardware_rank: int) -> int:
        """Return which one of its node a resource rank is."""
        return self._resource(hardware_rank).local_rank

    def get_hardware_infos(self, node_rank: int) -> list[HardwareInfo]:
        """Return the pieces of hardware that this group has on a node.

        None for CPU slots and nodes.
        """
        if self.resource_kind == NODE:
            return []
        return self.get_node(node_rank).get_hw_infos(self.resource_kind)

    def get_node_env_vars(self, node_rank: int) -> dict[str, str]:
        """Return the variables that ``env_configs`` sets for workers of this group on a node."""
        result: dict[str, str] = {}
        for config in self.env_configs:
            if node_rank in config.node_ranks:
                result.update(config.env_vars)
        return result

    def get_node_python_interpreter_path(self, node_rank: int) -> str | None:
        """Interpreter for workers of this group on a node, if ``env_configs`` names one."""
        for config in self.env_configs:
            if node_rank in config.node_ranks and config.python_interpreter_path:
                return config.python_interpreter_path
        return None

    def get_node(self, node_rank: int) -> NodeInfo:
        """Return a node of this group by its rank in the cluster."""
        for node in self.nodes:
            if node.node_rank == node_rank:
                return node
        raise ValueError(
            f"node {node_rank} is not in group {self.label!r}, which has {list(self.node_ranks)}"
        )

    def _count(self, node_rank: int, hardware_type: str) -> int:
        return self.get_node(node_rank).get_hw_resource_count(hardware_type)

    def _resource(self, rank: int) -> Resource:
        if not 0 <= rank < len(self.resources):
            owner = "this cluster" if self.label == CLUSTER_GROUP else f"group {self.label!r}"
            raise ValueError(
                f"resource rank {rank} is out of range: {owner} has {len(self.resources)}"
            )
        return self.resources[rank]
