"""Fill a run of resources in order."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf.scheduler.placement.base import PlacementStrategy


class PackedPlacementStrategy(PlacementStrategy):
    """Processes take resources in order, the same number each.

    With a stride the resources of a process lie that far apart and neighbouring processes
    interleave: two resources per process with stride 2 on ranks 0-3 gives ``{0, 2}, {1, 3}``.
    """

    def __init__(
        self,
        start_hardware_rank: int,
        end_hardware_rank: int,
        num_hardware_per_process: int = 1,
        stride: int = 1,
        node_group: str | Sequence[str] | None = None,
    ) -> None:
        """Place on the ranks from start to end.

        Args:
            start_hardware_rank: First resource rank.
            end_hardware_rank: Last resource rank, included.
            num_hardware_per_process: Resources of each process.
            stride: Distance between the resources of a process.
            node_group: Label, or several; the whole cluster by default.

        Raises:
            PlacementError: If the resources do not divide among the processes.
        """
        super().__init__(node_group)
        self.start_hardware_rank = start_hardware_rank
        self.end_hardware_rank = end_hardware_rank
        self.num_hardware_per_process = num_hardware_per_process
        self.stride = stride
        if not 0 <= start_hardware_rank <= end_hardware_rank:
            raise self.error(
                f"ranks {start_hardware_rank} to {end_hardware_rank} are not a range",
                "0 <= start_hardware_rank <= end_hardware_rank",
            )
        if num_hardware_per_process < 1 or stride < 1:
            raise self.error("num_hardware_per_process and stride must be 1 or more")
        count = end_hardware_rank - start_hardware_rank + 1
        block = num_hardware_per_process * stride
        if count % block:
            raise self.error(
                f"{count} resources do not divide: {count} ="
                f" {count // block} * ({num_hardware_per_process} per process * stride {stride})"
                f" + {count % block}",
                f"a multiple of {block} resources",
            )

    def ranks_of_processes(self) -> list[list[int]]:
        """Resource ranks of each process, in process order."""
        block = self.num_hardware_per_process * self.stride
        return [
            list(range(start + i, start + i + block, self.stride))
            for start in range(self.start_hardware_rank, self.end_hardware_rank + 1, block)
            for i in range(self.stride)
        ]

    def __str__(self) -> str:
        """Return the call that makes this strategy."""
        return (
            f"PackedPlacementStrategy({self.start_hardware_rank}, {self.end_hardware_rank},"
            f" num_hardware_per_process={self.num_hardware_per_process}, stride={self.stride})"
        )
