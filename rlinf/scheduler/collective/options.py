"""What a user may set of the NCCL groups over which tensors go from GPU to GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CollectiveGroupOptions:
    """Settings of the device links from one worker to others.

    They count when the first tensor goes from one worker to the other by NCCL: those of the sender
    are used on both sides. A broadcast has those of its receivers if they are the same for all.
    Other ways, through the host or shared memory, have no such settings.

    Attributes:
        accel_cluster_size: blocks of a cooperative group array, 0 to 8; None is NCCL's default.
        accel_min_ctas: fewest thread blocks of a transfer, 1 to 32; None is NCCL's default.
        accel_max_ctas: most thread blocks of a transfer, 1 to 32; None is NCCL's default.
        is_high_priority_stream: whether transfers run before other kernels of the GPU.
    """

    accel_cluster_size: int | None = None
    accel_min_ctas: int | None = None
    accel_max_ctas: int | None = None
    is_high_priority_stream: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("accel_cluster_size", 0, 8),
            ("accel_min_ctas", 1, 32),
            ("accel_max_ctas", 1, 32),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name}={value} is not possible; allowed: {low} to {high}")
        if (self.accel_min_ctas or 1) > (self.accel_max_ctas or 32):
            raise ValueError(
                f"accel_min_ctas={self.accel_min_ctas} is more than "
                f"accel_max_ctas={self.accel_max_ctas}"
            )

    def apply(self, options: object) -> None:
        """Set what is given in the `ProcessGroupNCCL.Options` of torch."""
        options.is_high_priority_stream = self.is_high_priority_stream
        for ours, theirs in (
            ("accel_cluster_size", "cga_cluster_size"),
            ("accel_min_ctas", "min_ctas"),
            ("accel_max_ctas", "max_ctas"),
        ):
            if (value := getattr(self, ours)) is not None:
                setattr(options.config, theirs, value)
