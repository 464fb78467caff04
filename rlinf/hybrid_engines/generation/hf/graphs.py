"""Captures decoding steps as CUDA graphs, one per batch size, and replays them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

import torch

logger = logging.getLogger(__name__)


class CapturedSteps:
    """Runs steps, as CUDA graphs where it can.

    A step reads and writes memory that stays where it is. It is captured when it is first needed,
    so a size that never occurs costs nothing.

    Args:
        enabled: Capture at all.
        largest: Most rows of a captured step; more rows are run without a graph.
    """

    def __init__(self, enabled: bool, largest: int):
        self.enabled = enabled
        self._largest = largest
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._warm: set[Hashable] = set()
        self._pool: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, rows: int, kind: Hashable, step: Callable[[], None]) -> None:
        """Run a step on the current stream.

        Args:
            rows: Its batch size.
            kind: What else distinguishes it from others.
            step: The step; it must not wait for the device.
        """
        if not self.enabled or rows > self._largest:
            step()
            return
        key = (rows, kind)
        if key not in self._graphs:
            if key not in self._warm:
                # The first one runs as it is: kernels are loaded and workspaces made meanwhile.
                self._warm.add(key)
                step()
                return
            try:
                self._graphs[key] = self._captured(step)
            except RuntimeError as error:
                logger.error(
                    "a decoding step of %d rows cannot be captured as a CUDA graph (%s); from now "
                    "on steps run without graphs, several times slower; set rollout.enforce_eager "
                    "to true to start without them",
                    rows,
                    error,
                )
                self.clear()
                self.enabled = False
                torch.cuda.synchronize()
                step()
                return
        self._graphs[key].replay()

    def clear(self) -> None:
        """Forget all graphs: what they read or wrote has moved."""
        self._graphs.clear()
        self._warm.clear()
        self._pool = None

    def _captured(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        # One pool for all graphs: they run one after the other and keep nothing there in between.
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        return graph
