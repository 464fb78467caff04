"""Notices rollout workers that have died or hang, so that clients need not wait for them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from rlinf.scheduler import WorkerGroup, WorkerInfo, end_process, responds
from rlinf.scheduler.worker.backend import CallFailed

_LOOK_SECONDS = 0.5
_RUNS_SECONDS = 20.0
"""For the I/O thread of a process that runs to answer, however busy it is."""


class HangDetector:
    """Says which of the workers that do not answer is the one that hangs.

    In a weight update all wait for one. So one whose process still runs has twice the time, and of
    several such workers one is ended after the other.

    Args:
        group: of rollout workers.
        patience: seconds that a worker may take to answer.
    """

    def __init__(self, group: WorkerGroup, patience: float) -> None:
        self.group, self.patience = group, patience
        self._ended = -math.inf
        self._one_at_a_time = asyncio.Lock()

    async def is_hung(self, rank: int, seconds: float) -> bool:
        """Return whether a worker is to be ended that has not answered for so long."""
        async with self._one_at_a_time:
            limit = min(self.patience, _RUNS_SECONDS)
            runs = await asyncio.to_thread(responds, self.group, rank, limit)
            now = time.monotonic()
            waits = seconds < 2 * self.patience or now - self._ended < self.patience
            if runs and waits:
                return False
            self._ended = now
            return True


class EngineWatch:
    """Asks one rollout worker again and again whether it is there.

    A worker that does not answer in time is ended, so that it is started anew. One that was started
    anew has no weights: it counts as failed until `accept`, and until then it is for those who
    start it to give up on it.

    Args:
        hangs: decides when it is ended.
        rank: of the worker.
        on_failure: called with the reason when it cannot be asked any more.
        on_return: called when it can be asked again.
    """

    def __init__(
        self,
        hangs: HangDetector,
        rank: int,
        on_failure: Callable[[str], None],
        on_return: Callable[[], None],
    ) -> None:
        self._hangs, self._group, self._rank = hangs, hangs.group, rank
        self._on_failure, self._on_return = on_failure, on_return
        self._known: WorkerInfo = self._group.worker_info_list[rank]
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
        launched, known = self._group.launched, self._known
        asked: Any = launched.actors[self._rank].rlinf_info.remote()
        answer = asyncio.ensure_future(launched.backend.result(asked))
        begin = time.monotonic()
        try:
            while not (await asyncio.wait({answer}, timeout=self._hangs.patience))[0]:
                seconds = time.monotonic() - begin
                if self._ended or launched.infos[self._rank].life != known.life:
                    continue
                hung = await self._hangs.is_hung(self._rank, seconds)
                # That took a while: the answer may have come, or the worker may be another.
                if hung and not answer.done() and self._known is known:
                    self._ended = True
                    self._fail(f"{known.name} has not answered for {seconds:.0f} s, and is ended")
                    end_process(self._group, self._rank)
            found = answer.result()
        except CallFailed as error:
            # Unless it was asked before it was started anew.
            if self._known is known:
                self._fail(f"{known.name} has died: {str(error).splitlines()[0]}")
        else:
            if found.life != self._known.life:
                launched.infos[self._rank] = found
                self._fail(f"{known.name} was started anew")
            elif not self._ended:
                # It could not be reached for a moment.
                self._return()
        finally:
            answer.cancel()

    def _fail(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(reason)

    def _return(self) -> None:
        if self._failed:
            self._failed = False
            self._on_return()
