"""Names of workers and what others need to know of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import total_ordering
from numbers import Integral
from typing import Any


@total_ordering
@dataclass(frozen=True)
class WorkerAddress:
    """Name of a worker: its root group and the path of ranks below it, printed as `group:0:3`.

    Args:
        root_group_name: name of the group.
        ranks: a rank, or the path of ranks to a nested worker; None names the group itself.
    """

    root_group_name: str
    ranks: int | Sequence[int] | None = ()

    def __post_init__(self) -> None:
        if not self.root_group_name or ":" in self.root_group_name:
            raise ValueError(
                f"group name {self.root_group_name!r} is not allowed: it must not be empty and "
                "must not hold ':', which separates ranks"
            )
        given = () if self.ranks is None else self.ranks
        path = (given,) if isinstance(given, Integral) else given
        object.__setattr__(self, "ranks", tuple(int(rank) for rank in path))

    @classmethod
    def from_name(cls, name: str) -> WorkerAddress:
        """Inverse of `get_name`."""
        root, *ranks = name.split(":")
        return cls(root, tuple(int(rank) for rank in ranks))

    @classmethod
    def from_parent_name_rank(cls, parent_name: str, rank: int) -> WorkerAddress:
        """Address of child `rank` of the worker called `parent_name`."""
        return cls.from_name(parent_name).get_child_address(rank)

    def get_name(self) -> str:
        """Return the address as text."""
        return ":".join([self.root_group_name, *map(str, self.ranks)])

    @property
    def rank(self) -> int:
        """Rank in its own group."""
        return self.ranks[-1]

    @property
    def rank_path(self) -> str:
        """All ranks as text."""
        return ":".join(map(str, self.ranks))

    def get_parent_rank(self) -> int | None:
        """Rank of the parent worker, None at the top."""
        return self.ranks[-2] if len(self.ranks) > 1 else None

    def get_parent_address(self) -> WorkerAddress:
        """Address of the parent, which for a top worker is its group."""
        return WorkerAddress(self.root_group_name, self.ranks[:-1])

    def get_child_address(self, rank: int) -> WorkerAddress:
        """Address of a child."""
        return WorkerAddress(self.root_group_name, (*self.ranks, rank))

    def __lt__(self, other: WorkerAddress) -> bool:
        return (self.root_group_name, self.ranks) < (other.root_group_name, other.ranks)

    def __str__(self) -> str:
        return self.get_name()


@dataclass
class WorkerInfo:
    """What the registry knows of a worker.

    Attributes:
        address: name of the worker.
        rank: rank in its group.
        group_world_size: number of workers in the group.
        cluster_node_rank: rank of its node.
        node_ip: address of its node.
        node_port: free port that was locked for it; that of rank 0 is the group's MASTER_PORT.
        pid: process id on the node.
        accelerator_type: kind of its accelerators, or "NO_ACCEL".
        accelerator_model: model of its accelerators.
        accelerator_rank: local rank of its first accelerator, -1 without one.
        available_accelerators: cluster-wide ids of its accelerators.
        hardware_infos: robots and other hardware given to it.
        endpoints: addresses on which it takes data, nearest first.
        memory_domain: equal for workers that can read each other's shared memory.
        log_file: where it logs.
        incarnation: how many times this address has been started before.
    """

    address: WorkerAddress
    rank: int
    group_world_size: int
    cluster_node_rank: int = 0
    node_ip: str = "127.0.0.1"
    node_port: int = 0
    pid: int = 0
    accelerator_type: str = "NO_ACCEL"
    accelerator_model: str = ""
    accelerator_rank: int = -1
    available_accelerators: list[int] = field(default_factory=list)
    hardware_infos: list[Any] = field(default_factory=list)
    endpoints: list[tuple[Any, ...]] = field(default_factory=list)
    memory_domain: str = ""
    log_file: str = ""
    incarnation: int = 0

    @property
    def name(self) -> str:
        """The address as text."""
        return self.address.get_name()

    @property
    def life(self) -> str:
        """Identity of the process among all that have had its name; see `life_at`."""
        return life_at(self.endpoints)


def life_at(endpoints: list[tuple[Any, ...]]) -> str:
    """Identity of the process that takes data at these addresses; "" if it takes none."""
    return endpoints[0][1] if endpoints else ""
