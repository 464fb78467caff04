"""Notices rollout workers that have died or hang, so that clients need not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rlinf.scheduler import WorkerGroup, WorkerInfo, end_process
from rlinf.scheduler.worker.backend import CallFailed

_LOOK_SECONDS = 0.5


class EngineWatch:
    """Asks one rollout worker again and again whether it is there.

    A worker that does not answer in time is ended, so that it is started anew. One that was started
    anew has no weights: it counts as failed until `accept`.

    Args:
        group: of rollout workers.
        rank: of the worker.
        patience: seconds that it may take to answer.
        on_failure: called with the reason when it cannot be asked any more.
        on_return: called when it can be asked again.
    """

    def __init__(
        self,
        group: WorkerGroup,
        rank: int,
        patience: float,
        on_failure: Callable[[str], None],
        on_return: Callable[[], None],
    ) -> None:
        self._group, self._rank, self._patience = group, rank, patience
        self._on_failure, self._on_return = on_failure, on_return
        self._known: WorkerInfo = group.worker_info_list[rank]
        self._failed = self._ended = False

    async def follow(self) -> None:
        """Look after the worker until this is cancelled."""
        while True:
            await self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    def accept(self, info: WorkerInfo) -> None:
        """Take a worker that was started anew, and has its weights, for the one of this rank.

        Args:
            info: what the registry knows of it.
        """
        if info.life != self._known.life:
            # Its end may not have been noticed.
            self._fail(f"{info.name} was started anew")
        self._known, self._ended = info, False
        self._group.launched.infos[self._rank] = info
        self._return()

    async def _look(self) -> None:
        launched, name = self._group.launched, self._known.name
        asked: Any = launched.actors[self._rank].rlinf_info.remote()
        try:
            found = await asyncio.wait_for(launched.backend.result(asked), self._patience)
        except asyncio.TimeoutError:
            self._fail(f"{name} has not answered for {self._patience:g} s, and is ended")
            if not self._ended:
                self._ended = True
                end_process(self._group, self._rank)
        except CallFailed as error:
            self._fail(f"{name} has died: {str(error).splitlines()[0]}")
        else:
            if found.life != self._known.life:
                self._fail(f"{name} was started anew")
            elif not self._ended:
                # It could not be reached for a moment.
                self._return()

    def _fail(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(reason)

    def _return(self) -> None:
        if self._failed:
            self._failed = False
            self._on_return()
