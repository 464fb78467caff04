"""Several engines behind one interface: by session, else the least loaded; without the dead."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from rlinf.agents.serving.backend import Backend, Drawing, EngineGone, Piece

_SESSIONS = 65536
"""Sessions whose engine is remembered."""


class Router:
    """A backend over others.

    The requests of a session go to one engine, which may have kept what it computed for earlier
    turns; others go to the one with the least to do. When an engine dies in the middle of a
    response, another one carries it on behind the tokens that there are. An engine that is alive
    again gets requests again; `tell_return` wakes those that wait for one.

    Args:
        engines: At least one.
        on_death: Called with the name of an engine that is left out from now on, and why.
        patience: Seconds that a request waits for an engine to come back when none is left.
    """

    name = "router"

    def __init__(
        self,
        engines: Sequence[Backend],
        on_death: Callable[[str, str], None] = lambda name, reason: None,
        patience: float = 0.0,
    ) -> None:
        if not engines:
            raise ValueError("a router needs at least one engine")
        self._engines = list(engines)
        self._on_death, self._patience = on_death, patience
        self._dead: set[str] = set()
        self._returned = asyncio.Event()
        self._homes: OrderedDict[str, Backend] = OrderedDict()

    @property
    def engines(self) -> list[Backend]:
        """Those that can be asked."""
        return [each for each in self._engines if each.alive]

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, on every engine."""
        return min(engine.max_length for engine in self._engines)

    @property
    def load(self) -> int:
        """Responses that the engines work on."""
        return sum(engine.load for engine in self.engines)

    @property
    def alive(self) -> bool:
        """Whether an engine is, or requests wait until one is back."""
        return self._patience > 0 or bool(self.engines)

    @property
    def version(self) -> int:
        """Oldest of the engines' weights."""
        return min((engine.version for engine in self.engines), default=0)

    def choose(self, session: str = "") -> Backend:
        """Return the engine for the next request of a session.

        Raises:
            EngineGone: There is none left.
        """
        alive = self.engines
        if not alive:
            raise EngineGone("no engine is left that could answer")
        home = self._homes.get(session) if session else None
        if home is None or home not in alive:
            home = min(alive, key=lambda engine: engine.load)
        if session:
            self._homes[session] = home
            self._homes.move_to_end(session)
            while len(self._homes) > _SESSIONS:
                self._homes.popitem(last=False)
        return home

    async def generate(
        self, prompt_ids: Sequence[int], drawing: Drawing, session: str = ""
    ) -> AsyncIterator[Piece]:
        """See `Backend.generate`."""
        made: list[int] = []
        while True:
            engine = await self._await_engine(session)
            left = replace(drawing, max_new_tokens=drawing.max_new_tokens - len(made))
            if made and drawing.seed is not None:
                # The noise begins anew: what is carried on must not repeat it.
                left = replace(left, seed=drawing.seed + len(made))
            pieces = engine.generate([*prompt_ids, *made], left, session)
            try:
                async with aclosing(pieces) as stream:
                    async for piece in stream:
                        made += piece.token_ids
                        yield piece
                return
            except EngineGone as error:
                # It may be back by the time a slow reader hears of its end.
                if not engine.alive and engine.name not in self._dead:
                    self._dead.add(engine.name)
                    self._on_death(engine.name, str(error))

    def tell_return(self, name: str) -> None:
        """Let requests go to an engine that is alive again."""
        self._dead.discard(name)
        self._returned.set()

    async def _await_engine(self, session: str) -> Backend:
        """Return the engine for the next request of a session; wait if none is left.

        Raises:
            EngineGone: None came back in time.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self.choose(session)
            except EngineGone as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                gone = error
            self._returned.clear()
            try:
                await asyncio.wait_for(self._returned.wait(), left)
            except asyncio.TimeoutError:
                raise EngineGone(f"{gone}, and none came back in {self._patience:g} s") from None
