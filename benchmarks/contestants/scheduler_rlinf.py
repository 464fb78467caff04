"""Worker groups, for `benchmarks.scheduler`: this repository's, and those of the public package.

Both have the same names, so one program measures either; the interpreter decides which one.
"""

from __future__ import annotations

import os
import time

from answer import serve


class WorkerGroups:
    """Starts a cluster, launches a group of workers and calls it."""

    def start(self) -> dict[str, float]:
        """Start a cluster; seconds of the import and of the start."""
        begin = time.perf_counter()
        from rlinf.scheduler import Cluster

        imported = time.perf_counter()
        self._cluster = Cluster(num_nodes=1)
        return {"import": imported - begin, "start": time.perf_counter() - imported}

    def launch(self, workers: int, slots: int) -> dict[str, object]:
        """Launch a group; seconds until all have answered, and their processes.

        Args:
            workers: size of the group.
            slots: CPU slots to place it on; 0 places it by node.
        """
        begin = time.perf_counter()
        from rlinf.scheduler import FlexiblePlacementStrategy, NodePlacementStrategy, Worker

        class Plain(Worker):
            def __init__(self) -> None:
                super().__init__()

            def pid(self) -> int:
                return os.getpid()

            def noop(self) -> None:
                pass

        if slots:
            strategy = FlexiblePlacementStrategy([[rank % slots] for rank in range(workers)])
        else:
            strategy = NodePlacementStrategy([0] * workers)
        self._group = Plain.create_group().launch(self._cluster, placement_strategy=strategy)
        pids = self._group.pid().wait()
        return {"seconds": time.perf_counter() - begin, "pids": pids}

    def noop(self, calls: int) -> list[float]:
        """Return the seconds of each of `calls` calls on all workers."""
        times = []
        for _ in range(calls):
            begin = time.perf_counter()
            self._group.noop().wait()
            times.append(time.perf_counter() - begin)
        return times

    def stop(self) -> None:
        """End the cluster."""
        # The public package has no shutdown of its own.
        getattr(self._cluster, "shutdown", lambda: None)()


if __name__ == "__main__":
    serve(WorkerGroups())
