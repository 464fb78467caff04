"""Places for the calls of a tool: so many at a time, and no more threads that never end."""

from __future__ import annotations

import asyncio
from collections import deque

from rlinf.agents.tools.tool import ToolFailed


class Slots:
    """The places of a tool, to be used in one event loop.

    A call that was given up keeps its place until it really ends, so a tool that hangs has at most
    `count` threads. When all places are held so, calls fail at once.

    Args:
        name: of the tool.
        count: calls at a time.

    Attributes:
        stuck: places held by calls that were given up and have not ended.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._taken = self.stuck = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def all_stuck(self) -> bool:
        """Whether no call can be made until one that was given up ends."""
        return self.stuck >= self._count

    async def take(self) -> None:
        """Wait for a place.

        Raises:
            ToolFailed: all are held by calls that do not end.
        """
        self._check()
        if self._taken < self._count and not self._waiting:
            self._taken += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.free()
            elif place in self._waiting:
                self._waiting.remove(place)
            raise

    def free(self) -> None:
        """Give a place back."""
        self._taken -= 1
        while self._waiting and self._taken < self._count:
            place = self._waiting.popleft()
            if not place.done():
                self._taken += 1
                place.set_result(None)

    def give_up(self) -> None:
        """Note that the call at a place was given up; whoever waits for the last one fails."""
        self.stuck += 1
        if self.all_stuck:
            waiting, self._waiting = self._waiting, deque()
            for place in waiting:
                if not place.done():
                    place.set_exception(self._full())

    def ended(self) -> None:
        """Note that a call that was given up has ended, and give its place back."""
        self.stuck -= 1
        self.free()

    def _check(self) -> None:
        if self.all_stuck:
            raise self._full()

    def _full(self) -> ToolFailed:
        return ToolFailed(
            f"all {self._count} places of the tool '{self._name}' are held by calls that did not "
            "answer in time and have not ended"
        )
