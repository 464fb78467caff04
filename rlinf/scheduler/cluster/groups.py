"""The groups that run on a cluster: started one by one or together, each ended once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rlinf.scheduler.cluster.shutdown import GroupShutdown, attempt
from rlinf.scheduler.worker.handle import WorkerGroupFuncResult, wait_all
from rlinf.scheduler.worker.launched import LaunchedGroup

_Launch = tuple[LaunchedGroup, WorkerGroupFuncResult]
"""A group, and the call that builds its workers."""


class RunningGroups:
    """Waits until groups have started, and ends them.

    Args:
        shutdown: ends groups.
        timeout: seconds that workers have to register; None is no limit.
    """

    def __init__(self, shutdown: GroupShutdown, timeout: float | None):
        self._shutdown = shutdown
        self._timeout = timeout
        self._groups: list[LaunchedGroup] = []
        self._together = threading.local()

    def start(self, group: LaunchedGroup) -> None:
        """Let the workers of a group be built, and wait until all have registered.

        In a block of `started_together`, the end of the block waits.
        """
        self._groups.append(group)
        launch = (group, group.start())
        if hasattr(self._together, "launches"):
            self._together.launches.append(launch)
            return
        with self._ended_on_failure([launch]):
            self._wait([launch])

    @contextmanager
    def started_together(self) -> Iterator[None]:
        """Let the groups that are started in the block start at the same time."""
        self._together.launches = launches = []
        with self._ended_on_failure(launches):
            try:
                yield
            finally:
                del self._together.launches
            self._wait(launches)

    def _wait(self, launches: list[_Launch]) -> None:
        if len(launches) > 1:
            # One that fails is told although another one hangs.
            wait_all(*(starting for _, starting in launches), timeout=self._timeout)
        for group, starting in launches:
            group.infos = starting.wait(self._timeout)

    @contextmanager
    def _ended_on_failure(self, launches: list[_Launch]) -> Iterator[None]:
        """End groups if the block, which starts them, fails."""
        try:
            yield
        except BaseException:
            for group, _ in launches:
                with attempt(f"ending group {group.name!r}, which could not be started,"):
                    self.end(group)
            raise

    def abandon(self, names: list[str]) -> None:
        """Tell the backend that workers are lost, so that calls of them fail at once."""
        known = set(names)
        for group in list(self._groups):
            lost = [a for rank, a in enumerate(group.actors) if group.name_of(rank) in known]
            if lost:
                with attempt(f"giving up lost workers of group {group.name!r}"):
                    group.backend.end(lost)

    def end(self, group: LaunchedGroup) -> None:
        """End the workers of a group and wait until they are gone; once."""
        # A later group may have the same name, and its workers are not to be touched.
        if not group.stopped:
            group.stopped = True
            if group in self._groups:
                self._groups.remove(group)
            self._shutdown.end([group])

    def end_all(self) -> None:
        """End all groups that run."""
        groups, self._groups = self._groups, []
        self._shutdown.end(groups)
