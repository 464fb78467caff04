"""Place by node, whatever hardware it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlinf.config.placement import Resource
from rlinf.scheduler.placement.base import PlacementStrategy

if TYPE_CHECKING:
    from rlinf.scheduler.topology.topology import ClusterTopology


class NodePlacementStrategy(PlacementStrategy):
    """One process for each rank given; it sees all accelerators of its node."""

    def __init__(
        self, node_ranks: Sequence[int], node_group_label: str | Sequence[str] | None = None
    ) -> None:
        """Place one process on each node named; name a node several times for several processes.

        Args:
            node_ranks: Nodes, counted within the node groups.
            node_group_label: Label, or several without common nodes; the cluster by default.

        Raises:
            PlacementError: If there are no ranks.
        """
        super().__init__(node_group_label)
        self.node_ranks = sorted(node_ranks)
        if not self.node_ranks:
            raise self.error("there are no processes", "at least one node rank")

    def ranks_of_processes(self) -> list[list[int]]:
        """Return the node of each process, in process order."""
        return [[rank] for rank in self.node_ranks]

    def resources(self, topology: ClusterTopology) -> list[Resource]:
        """Return the nodes of the groups."""
        nodes = topology.resources(self.node_groups, as_nodes=True)
        ranks = [node.node_rank for node in nodes]
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
        if twice:
            raise self.error(
                f"node {twice[0]} is in more than one of the groups {', '.join(self.node_groups)}",
                "node groups without common nodes",
            )
        return nodes

    def __str__(self) -> str:
        """Return the call that makes this strategy."""
        return f"NodePlacementStrategy({self.node_ranks})"
