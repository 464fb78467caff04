"""Plain Ray actors, for `benchmarks.scheduler`."""

from __future__ import annotations

import os
import time

from answer import serve


class Plain:
    """What an actor is that does nothing."""

    def pid(self) -> int:
        """Process of the actor."""
        return os.getpid()

    def noop(self) -> None:
        """Do nothing."""


class RayActors:
    """Starts Ray, starts actors and calls them."""

    def start(self, dashboard: bool) -> dict[str, float]:
        """Start Ray; seconds of the import and of the start."""
        begin = time.perf_counter()
        import ray

        imported = time.perf_counter()
        # True is not the default: it insists on a dashboard. None starts one if it is installed.
        ray.init(address="local", include_dashboard=None if dashboard else False)
        return {"import": imported - begin, "start": time.perf_counter() - imported}

    def launch(self, workers: int) -> dict[str, object]:
        """Start actors; seconds until all have answered, and their processes."""
        import ray

        begin = time.perf_counter()
        remote = ray.remote(num_cpus=0)(Plain)
        self._actors = [remote.remote() for _ in range(workers)]
        pids = ray.get([actor.pid.remote() for actor in self._actors])
        return {"seconds": time.perf_counter() - begin, "pids": pids}

    def noop(self, calls: int) -> list[float]:
        """Return the seconds of each of `calls` calls on all actors."""
        import ray

        times = []
        for _ in range(calls):
            begin = time.perf_counter()
            ray.get([actor.noop.remote() for actor in self._actors])
            times.append(time.perf_counter() - begin)
        return times

    def stop(self) -> None:
        """End Ray."""
        import ray

        ray.shutdown()


if __name__ == "__main__":
    serve(RayActors())
