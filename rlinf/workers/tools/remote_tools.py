"""Calls tools that run in workers of their own, and goes on when one of those dies."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Mapping
from typing import Any

from rlinf.agents.tools.toolbox import ToolCall, ToolFailed, ToolResult
from rlinf.scheduler import WaitTimeout, WorkerDied, WorkerGroup, end_process, registered_info
from rlinf.scheduler.worker.backend import CallFailed, NotYet, WorkerLost, WorkerUnavailable
from rlinf.workers.tools.tool_worker import ToolWorker

_RETRY_SECONDS = 0.05
_SETTLE_SECONDS = 2.0
"""After which a worker that is said to be dead is not expected back."""
_GRACE_SECONDS = 10.0
"""Beyond the deadline of a tool: for a call to get there and back, and for an answer to a ping."""


class ToolWorkersLost(RuntimeError):
    """No worker of tools is left: the run cannot go on."""


class RemoteTools:
    """Calls tools in a group of `ToolWorker`s.

    Episodes are dealt to the workers in turn, and stay there. One whose worker has died goes to the
    next one, unless it had something open there. A worker that has died is not asked before it is
    back.

    Args:
        group: the workers.
        stateful: names of the tools that keep something open for an episode.
        come_back: seconds that a worker may take to be started anew.
    """

    def __init__(self, group: WorkerGroup, stateful: frozenset[str], come_back: float) -> None:
        self.stateful = stateful
        self._group, self._come_back = group, come_back
        self._numbers = itertools.count()
        self._name = uuid.uuid4().hex
        self._lost: dict[int, str] = {}
        self._returning: dict[int, asyncio.Task[None]] = {}

    @classmethod
    def connect(cls, name: str, stateful: frozenset[str], come_back: float) -> RemoteTools:
        """Find the group of a name, from a worker or the driver."""
        return cls(WorkerGroup.from_group_name(ToolWorker, name), stateful, come_back)

    def session(
        self, timeouts: Mapping[str, float], metadata: Mapping[str, Any]
    ) -> RemoteToolSession:
        """Return what calls tools for an episode.

        Args:
            timeouts: deadline of each tool (s).
            metadata: of the question.
        """
        number = next(self._numbers)
        return RemoteToolSession(self, f"{self._name}-{number}", number, timeouts, metadata)

    def rank_for(self, number: int) -> int:
        """Return the worker of an episode, among those that are not lost for good.

        Raises:
            ToolWorkersLost: none is left.
        """
        left = [rank for rank in range(self._group.world_size) if rank not in self._lost]
        if not left:
            last = list(self._lost.values())[-1]
            raise ToolWorkersLost(
                f"all {self._group.world_size} workers of {self._group.worker_group_name} have "
                f"died more often than they are started anew; the last: {last}. Raise "
                "tools.max_restarts, or mend the tool that ends its process"
            )
        return left[number % len(left)]

    async def ask(self, rank: int, timeout: float, method: str, *arguments: Any) -> Any:
        """Call a method of a worker.

        Raises:
            ToolFailed: it died, or did not answer.
        """
        if rank in self._returning:
            await asyncio.shield(self._returning[rank])
        if rank in self._lost:
            self.rank_for(0)
            raise ToolFailed(f"the worker of the tool died for good: {self._lost[rank]}")
        begin, life = time.monotonic(), self._life_of(rank)
        call = getattr(self._group.execute_on(rank), method)(*arguments)
        answer = asyncio.ensure_future(call.async_wait())
        try:
            while not (await asyncio.wait({answer}, timeout=timeout))[0]:
                # It may be in line behind others; a worker that hangs does not answer at all.
                if await self._answers(rank):
                    continue
                await asyncio.to_thread(self._renew, rank)
                seconds = time.monotonic() - begin
                hung = f"{self._name_of(rank)} has not answered for {seconds:.0f} s"
                # Another call may have found out before.
                if rank not in self._returning and self._life_of(rank) == life:
                    hung += ", and was ended"
                    self._await_return(rank, hung, life)
                    end_process(self._group, rank)
                raise ToolFailed(hung)
            return answer.result()[0]
        except WorkerDied as death:
            said = str(death).splitlines()[0]
            self._await_return(rank, said)
            raise ToolFailed(f"the worker of the tool died: {said}") from death
        finally:
            answer.cancel()

    def forget_soon(self, rank: int, session: str) -> None:
        """Let a worker close what an episode has open; nobody waits for it."""
        if rank not in self._returning and rank not in self._lost:
            self._group.execute_on(rank).close_session(session)

    def _renew(self, rank: int) -> None:
        """Learn of a worker that was started anew while nobody here asked it for anything."""
        try:
            self._group.launched.infos[rank] = registered_info(self._group, rank, _GRACE_SECONDS)
        except (ConnectionError, WaitTimeout):
            # It is between two lives.
            pass

    def _life_of(self, rank: int) -> str:
        return self._group.launched.infos[rank].life

    def _name_of(self, rank: int) -> str:
        return self._group.launched.name_of(rank)

    def _await_return(self, rank: int, death: str, ended: str = "") -> None:
        if rank not in self._returning:
            task = asyncio.ensure_future(self._return_of(rank, death, ended))
            self._returning[rank] = task
            task.add_done_callback(lambda _: self._returning.pop(rank, None))

    async def _return_of(self, rank: int, death: str, ended: str) -> None:
        """Wait until a worker is back; one that is not is not asked any more.

        Args:
            rank: of the worker.
            death: what is said of its end.
            ended: life of the process that is being ended; empty if it has ended.
        """
        launched, begin = self._group.launched, time.monotonic()
        while (seconds := time.monotonic() - begin) < self._come_back:
            try:
                asked = launched.backend.result(launched.actors[rank].rlinf_info.remote())
                found = await asyncio.wait_for(asked, self._come_back)
                if found.life != ended:
                    launched.infos[rank] = found
                    return
            except (WorkerUnavailable, NotYet):
                # Between two lives. Ray tells nobody when the next one begins.
                pass
            except WorkerLost:
                # A call that was under way when the worker died is lost like one to a dead worker.
                if seconds > _SETTLE_SECONDS:
                    break
            except asyncio.TimeoutError:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        self._lost[rank] = death

    async def _answers(self, rank: int) -> bool:
        launched = self._group.launched
        asked = launched.backend.result(launched.actors[rank].ping.remote())
        try:
            await asyncio.wait_for(asked, _GRACE_SECONDS)
            return True
        except (CallFailed, asyncio.TimeoutError):
            return False


class RemoteToolSession:
    """Calls tools of other processes for one episode.

    Args:
        tools: the workers.
        name: of the episode.
        number: of the episode.
        timeouts: deadline of each tool (s).
        metadata: of the question.
    """

    def __init__(
        self,
        tools: RemoteTools,
        name: str,
        number: int,
        timeouts: Mapping[str, float],
        metadata: Mapping[str, Any],
    ) -> None:
        self._tools, self._name, self._number = tools, name, number
        self._timeouts, self._metadata = timeouts, dict(metadata)
        self._opened_at: int | None = None
        self._opened = False

    async def call(self, call: ToolCall) -> ToolResult:
        """Make one attempt at a call; see `rlinf.agents.tools.toolbox.RemoteSession`."""
        rank, stateful = self._opened_at, call.name in self._tools.stateful
        if rank is None:
            rank = self._tools.rank_for(self._number)
        if stateful:
            self._opened_at = rank
        limit = self._timeouts[call.name] + _GRACE_SECONDS
        metadata = self._metadata if stateful else {}
        asked = (self._name, call.name, dict(call.arguments), self._opened, metadata)
        try:
            outcome, text, reward = await self._tools.ask(rank, limit, "call_tool", *asked)
        except ToolFailed:
            # The next attempt goes to another worker, unless something is open at this one.
            self._number += 1
            if not self._opened:
                self._opened_at = None
            raise
        if outcome == "failed":
            raise ToolFailed(text)
        self._opened = self._opened or stateful
        return ToolResult(call.name, text, error=outcome == "error", reward=reward)

    async def close(self) -> None:
        """Let the worker close what the episode has open."""
        if self._opened_at is not None:
            self._tools.forget_soon(self._opened_at, self._name)
