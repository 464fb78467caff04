"""Several engines behind one interface: by session, else the least loaded; without the dead."""

from __future__ import annotations

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
    response, another one carries it on behind the tokens that there are.

    Args:
        engines: At least one.
        on_death: Called with the name of an engine that is left out from now on, and why.
    """

    name = "router"

    def __init__(
        self,
        engines: Sequence[Backend],
        on_death: Callable[[str, str], None] = lambda name, reason: None,
    ) -> None:
        if not engines:
            raise ValueError("a router needs at least one engine")
        self._engines = list(engines)
        self._on_death = on_death
        self._dead: set[str] = set()
        self._homes: OrderedDict[str, Backend] = OrderedDict()

    @property
    def engines(self) -> list[Backend]:
        """Those that can be asked."""
        return [each for each in self._engines if each.alive and each.name not in self._dead]

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
        """Whether any engine is."""
        return bool(self.engines)

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
            engine = self.choose(session)
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
                if engine.name not in self._dead:
                    self._dead.add(engine.name)
                    self._on_death(engine.name, str(error))
