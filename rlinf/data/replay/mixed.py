"""A share of each batch from demonstrations, the rest from what the policy has done (RLPD)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlinf.data.replay.buffer import TrajectoryReplayBuffer
from rlinf.data.replay.trajectory import ReplayBatch, ReplayTrajectory


class MixedReplay:
    """Two buffers that are drawn from together.

    Args:
        replay: what the policy has done.
        demos: demonstrations.
        demo_ratio: share of a batch that is drawn from demonstrations.

    Attributes:
        replay: what the policy has done.
        demos: demonstrations.
    """

    def __init__(
        self,
        replay: TrajectoryReplayBuffer,
        demos: TrajectoryReplayBuffer,
        demo_ratio: float = 0.5,
    ) -> None:
        self.replay, self.demos = replay, demos
        self.demo_ratio = demo_ratio

    @property
    def demo_ratio(self) -> float:
        """Share of a batch that is drawn from demonstrations."""
        return self._ratio

    @demo_ratio.setter
    def demo_ratio(self, ratio: float) -> None:
        if not 0 <= ratio <= 1:
            raise ValueError(f"demo_ratio is {ratio}; it is from 0 to 1")
        self._ratio = ratio

    def num_demos(self, num_chunks: int) -> int:
        """Return how many of so many transitions are drawn from demonstrations."""
        return int(num_chunks * self._ratio + 0.5)

    def add_trajectories(self, trajectories: Sequence[ReplayTrajectory]) -> int:
        """Add what the policy has done; see `TrajectoryReplayBuffer`."""
        return self.replay.add_trajectories(trajectories)

    def sample(self, num_chunks: int, n_step: int | None = None) -> ReplayBatch:
        """Draw transitions: those of the policy first, then `num_demos` demonstrations."""
        demos = self.num_demos(num_chunks)
        parts = [(self.replay, num_chunks - demos), (self.demos, demos)]
        return ReplayBatch.cat([part.sample(n, n_step) for part, n in parts if n])

    def sample_batches(self, count: int, num_chunks: int) -> Iterator[ReplayBatch]:
        """Draw several batches, each as `sample` does; see `TrajectoryReplayBuffer`."""
        demos = self.num_demos(num_chunks)
        parts = [(self.replay, num_chunks - demos), (self.demos, demos)]
        streams = [part.sample_batches(count, n) for part, n in parts if n]
        for drawn in zip(*streams, strict=True):
            yield ReplayBatch.cat(drawn)

    def update_priorities(self, indices: Tensor, priorities: Tensor) -> None:
        """Set the priorities of a batch, in the order in which it was drawn.

        Buffers that draw uniformly have none, and are left out.
        """
        own = len(indices) - self.num_demos(len(indices))
        for part, rows in ((self.replay, slice(None, own)), (self.demos, slice(own, None))):
            if part.prioritized:
                part.update_priorities(indices[rows], priorities[rows])

    @property
    def prioritized(self) -> bool:
        """Whether draws of the policy's own transitions go by priority."""
        return self.replay.prioritized

    def is_demo(self, num_chunks: int) -> Tensor:
        """Return which transitions of a batch of so many are demonstrations, bool `[n]`."""
        return torch.arange(num_chunks) >= num_chunks - self.num_demos(num_chunks)

    def __len__(self) -> int:
        return len(self.replay) + len(self.demos)

    def is_ready(self, min_size: int | None = None) -> bool:
        """Return whether all buffers that a batch is drawn from are ready.

        Args:
            min_size: drawable transitions of the policy's own; None is its `min_buffer_size`.
        """
        own = self._ratio == 1 or self.replay.is_ready(min_size)
        return own and (self._ratio == 0 or self.demos.is_ready())

    def get_stats(self) -> dict[str, int]:
        """Return counts for metrics."""
        demos = {f"demo_{name}": value for name, value in self.demos.get_stats().items()}
        return self.replay.get_stats() | demos

    def save_checkpoint(self, folder: str | Path) -> None:
        """Save both buffers: `replay` and `demos` in a folder."""
        self.snapshot(folder)()

    def snapshot(self, folder: str | Path) -> Callable[[], None]:
        """Fix the state of both buffers; see `TrajectoryReplayBuffer.snapshot`."""
        writers = [
            self.replay.snapshot(Path(folder) / "replay"),
            self.demos.snapshot(Path(folder) / "demos"),
        ]

        def write() -> None:
            for writer in writers:
                writer()

        return write

    def load_checkpoint(self, folder: str | Path) -> list[str]:
        """Load both buffers; see `TrajectoryReplayBuffer.load_checkpoint`."""
        notes = self.replay.load_checkpoint(Path(folder) / "replay")
        return notes + self.demos.load_checkpoint(Path(folder) / "demos")

    def close(self) -> None:
        """Close both buffers."""
        self.replay.close()
        self.demos.close()
