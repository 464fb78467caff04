"""A rollout worker as a backend of the endpoint, over channels."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from rlinf.agents.serving.backend import Drawing, EngineGone, Piece
from rlinf.data.live import LiveAbort, LiveNews, LiveRequest

Send = Callable[[list[Any]], Awaitable[Any]]
_numbers = itertools.count()


class EngineLink:
    """Asks one rollout worker.

    Args:
        rank: of the worker.
        max_length: most tokens of a sequence.
        send: brings messages to the worker.
    """

    def __init__(self, rank: int, max_length: int, send: Send) -> None:
        self.name, self.max_length = f"rollout:{rank}", max_length
        self.version = 0
        self._send = send
        self._open: dict[int, asyncio.Queue[Piece | Exception]] = {}
        self._failure: str | None = None
        self._leaving: set[asyncio.Task[Any]] = set()

    @property
    def load(self) -> int:
        """Responses under way."""
        return len(self._open)

    @property
    def alive(self) -> bool:
        """Whether it has not failed."""
        return self._failure is None

    async def generate(
        self, prompt_ids: Sequence[int], drawing: Drawing, session: str = ""
    ) -> AsyncIterator[Piece]:
        """See `rlinf.agents.serving.backend.Backend.generate`."""
        if self._failure is not None:
            raise EngineGone(self._failure)
        number = next(_numbers)
        news: asyncio.Queue[Piece | Exception] = asyncio.Queue()
        self._open[number] = news
        ended = False
        try:
            await self._send([LiveRequest(number, list(prompt_ids), drawing)])
            while not ended:
                piece = await news.get()
                if isinstance(piece, Exception):
                    # What a dead worker did not read waits for the next one, which is to drop it.
                    ended = not isinstance(piece, EngineGone)
                    raise piece
                ended = piece.finish_reason is not None
                yield piece
        finally:
            del self._open[number]
            if not ended:
                # Whoever left does not wait for the message.
                task = asyncio.ensure_future(self._send([LiveAbort(number)]))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    def deliver(self, news: LiveNews) -> None:
        """Hand on what the worker has written."""
        self.version = news.version
        for number, pieces in news.pieces.items():
            for piece in pieces:
                self._put(number, piece)
        for number, reason in news.refused.items():
            self._put(number, ValueError(reason))

    def fail(self, reason: str) -> None:
        """Give up all that the worker was doing."""
        self._failure = reason
        for number in self._open:
            self._put(number, EngineGone(reason))

    def revive(self) -> None:
        """Ask the worker again, which was started anew."""
        self._failure = None

    def _put(self, number: int, piece: Piece | Exception) -> None:
        queue = self._open.get(number)
        if queue is not None:
            queue.put_nowait(piece)
