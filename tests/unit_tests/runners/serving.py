"""Workers that serve as rollout and reward workers do; they import no torch."""

from __future__ import annotations

import asyncio
from typing import Any

from rlinf.scheduler import Worker


class Service(Worker):
    """Serves until it is told to end; the last rank fails if it is told to.

    Args:
        fails: whether it is.
    """

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self._fails = fails and self._rank == self._world_size - 1
        self._end = asyncio.Event()

    async def rollout(self, *channels: Any) -> int:
        return await self._serve()

    async def compute_rewards(self, *channels: Any) -> int:
        return await self._serve()

    async def _serve(self) -> int:
        if self._fails:
            raise LookupError(f"rank {self._rank} lost its way")
        await self._end.wait()
        return self._rank

    async def end(self) -> None:
        self._end.set()
