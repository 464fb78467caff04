"""Name the resources of each process."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.scheduler.placement.base import PlacementStrategy


class FlexiblePlacementStrategy(PlacementStrategy):
    """Each process has a list of resources; processes may share them."""

    def __init__(
        self,
        hardware_ranks_list: Sequence[Sequence[int]],
        node_group_label: str | Sequence[str] | None = None,
    ) -> None:
        """Place one process on each list of resource ranks.

        Args:
            hardware_ranks_list: Resource ranks of each process. They are sorted within a process,
                and processes by their first rank.
            node_group_label: Label, or several; the whole cluster by default.

        Raises:
            PlacementError: If a list is empty or names a rank twice.
        """
        super().__init__(node_group_label)
        self.hardware_ranks_list = sorted(
            (sorted(ranks) for ranks in hardware_ranks_list), key=lambda ranks: ranks[:1]
        )
        if not self.hardware_ranks_list:
            raise self.error("there are no processes", "at least one list of ranks")
        for ranks in self.hardware_ranks_list:
            if not ranks:
                raise self.error("a process has no resources", "at least one rank for each process")
            if len(set(ranks)) < len(ranks):
                raise self.error(f"a process has a rank twice: {ranks}", "every rank once")

    def ranks_of_processes(self) -> list[list[int]]:
        """Resource ranks of each process, in process order."""
        return self.hardware_ranks_list

    def __str__(self) -> str:
        """Return the call that makes this strategy."""
        return f"FlexiblePlacementStrategy({self.hardware_ranks_list})"
