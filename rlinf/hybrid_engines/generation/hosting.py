"""An engine in a thread of its own, as a backend of the endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any

from rlinf.agents.serving.backend import Drawing, EngineGone, Piece
from rlinf.hybrid_engines.generation.interface import GenerationEngine
from rlinf.hybrid_engines.generation.requests import (
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from rlinf.hybrid_engines.generation.token_news import TokenNews

logger = logging.getLogger(__name__)


class HostedEngine:
    """Lets an engine work on whatever it is asked for, token by token.

    Requests that come while others are under way join them at the next token.

    Args:
        engine: Nobody else uses it, but by `call`.
        name: Says which.
    """

    def __init__(self, engine: GenerationEngine, name: str = "engine") -> None:
        self.name = name
        self._engine = engine
        self._failure: str | None = None
        self._numbers = itertools.count()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._followers: dict[Hashable, _Follower] = {}
        engine.on_token = self._note
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence."""
        return self._engine.max_length

    @property
    def load(self) -> int:
        """Responses under way."""
        return len(self._followers)

    @property
    def alive(self) -> bool:
        """Whether it has not failed."""
        return self._failure is None

    @property
    def version(self) -> int:
        """Of the weights."""
        return self._engine.version

    async def generate(
        self, prompt_ids: Sequence[int], drawing: Drawing, session: str = ""
    ) -> AsyncIterator[Piece]:
        """See `rlinf.agents.serving.backend.Backend.generate`."""
        params = SamplingParams(**drawing.sampling())
        request = GenerationRequest(next(self._numbers), list(prompt_ids), params)
        follower = _Follower(asyncio.get_running_loop(), drawing.whole)
        self._jobs.put(lambda: self._begin(request, follower))
        if self._failure is not None:
            raise EngineGone(self._failure)
        ended = False
        try:
            while not ended:
                piece = await follower.next()
                ended = piece.finish_reason is not None
                yield piece
        finally:
            if not ended:
                self._jobs.put(lambda: self._abort(request.request_id))

    async def call(self, function: Callable[[GenerationEngine], Any]) -> Any:
        """Call a function with the engine between two tokens; return what it returns."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def job() -> None:
            try:
                value = function(self._engine)
            except Exception as error:
                _tell(loop, future, None, error)
            else:
                _tell(loop, future, value, None)

        self._jobs.put(job)
        if self._failure is not None:
            raise EngineGone(self._failure)
        return await future

    def close(self) -> None:
        """End the thread, and what the engine started."""
        self._jobs.put(None)
        self._thread.join(timeout=30)
        self._engine.close()

    # -- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._take_jobs():
                if self._engine.unfinished:
                    for result in self._engine.step():
                        self._end(result)
                for follower in list(self._followers.values()):
                    follower.hand_over()
            self._fail("the engine was closed")
        except Exception as error:
            logger.exception("engine %s failed", self.name)
            self._fail(f"engine {self.name} failed: {type(error).__name__}: {error}")

    def _take_jobs(self) -> bool:
        """Do what is asked for; wait for it if there is nothing else to do."""
        while True:
            try:
                job = self._jobs.get(block=not self._engine.unfinished)
            except queue.Empty:
                return True
            if job is None:
                return False
            job()
            if not self._engine.unfinished and self._jobs.empty():
                return True

    def _fail(self, reason: str) -> None:
        self._failure = reason
        for follower in self._followers.values():
            follower.put(EngineGone(reason))
        self._followers.clear()
        # What came meanwhile hears of it, too.
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                job()

    def _begin(self, request: GenerationRequest, follower: _Follower) -> None:
        if self._failure is not None:
            follower.put(EngineGone(self._failure))
            return
        try:
            self._engine.submit([request])
        except ValueError as error:
            follower.put(error)
            return
        self._followers[request.request_id] = follower

    def _abort(self, name: Hashable) -> None:
        if self._followers.pop(name, None) is not None and self._failure is None:
            self._engine.abort([name])

    def _note(self, name: Hashable, index: int, token: int, logprob: float) -> None:
        follower = self._followers.get(name)
        if follower is not None:
            follower.news.note(token, logprob, self._engine.version)

    def _end(self, result: GenerationResult) -> None:
        follower = self._followers.pop(result.request_id, None)
        if follower is not None:
            follower.put(follower.news.end(result))


class _Follower:
    """Brings the tokens of one response from the thread of an engine to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, whole: bool) -> None:
        self.news = TokenNews()
        self._loop, self._whole = loop, whole
        self._pieces: asyncio.Queue[Piece | Exception] = asyncio.Queue()

    async def next(self) -> Piece:
        piece = await self._pieces.get()
        if isinstance(piece, Exception):
            raise piece
        return piece

    def hand_over(self) -> None:
        piece = None if self._whole else self.news.take()
        if piece is not None:
            self.put(piece)

    def put(self, piece: Piece | Exception) -> None:
        # The loop of who asked may have ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


def _tell(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    value: Any,
    error: Exception | None,
) -> None:
    def tell() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    loop.call_soon_threadsafe(tell)
