"""The rollout worker of runs with live traffic: clients' requests beside those of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any

from rlinf.agents.serving.backend import Piece
from rlinf.data.live import LiveAbort, LiveNews, LiveRequest
from rlinf.data.reasoning import GroupRequest
from rlinf.hybrid_engines.generation import GenerationRequest, GenerationResult, SamplingParams
from rlinf.hybrid_engines.generation.token_news import TokenNews
from rlinf.scheduler import Channel, ItemLost
from rlinf.workers.rollout.generation_worker import GenerationWorker, name_of

_LIVE = "live"


class ServerRolloutWorker(GenerationWorker):
    """Serves clients, token by token, and evaluations beside them.

    New weights come between two tokens, and every request is carried on under them: no client
    notices but by the version of its tokens. An evaluation does not keep clients waiting. A worker
    that dies is started anew, and holds what it is asked for until it has its weights.

    Args:
        cfg: checked configuration.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._loading = True
        self._live: Channel | None = None
        self._news: dict[int, TokenNews] = {}
        self._streams: set[int] = set()
        self._ended: dict[int, Piece] = {}
        self._refused: dict[int, str] = {}

    @classmethod
    def restart_policy(cls, cfg: Any) -> str | dict[str, int]:
        """Start a dead worker again, as often as the config says."""
        most = cfg.rollout_server.max_engine_restarts
        return {"on_failure": most} if most else "never"

    async def init_worker(self) -> None:
        """Build the engine."""
        await super().init_worker()
        self.engine.on_token = self._note

    async def connect(self, live: Channel) -> int:
        """Take the channel that news go to; return the most tokens of a sequence."""
        self._live = live
        return self.engine.max_length

    def _submit(self, request: GroupRequest | LiveRequest | LiveAbort) -> None:
        if isinstance(request, LiveAbort):
            self._forget(request.number)
            self._calls.abort((_LIVE, request.number))
        elif isinstance(request, LiveRequest):
            self._begin(request)
        elif name_of(request) not in self._calls:
            # What was asked of an engine that died is asked again, and may come twice.
            super()._submit(request)

    def _begin(self, request: LiveRequest) -> None:
        number = request.number
        params = SamplingParams(**request.drawing.sampling())
        work = GenerationRequest((_LIVE, number), list(request.prompt_ids), params)

        def done(results: list[GenerationResult]) -> None:
            news = self._forget(number)
            if news is not None:
                self._ended[number] = news.end(results[0])

        self._news[number] = TokenNews()
        if not request.drawing.whole:
            self._streams.add(number)
        try:
            self._calls.submit(work, done, hold=self._asleep or self._loading)
        except ValueError as error:
            # What one client asks for is no reason for the others to stop.
            self._forget(number)
            self._refused[number] = str(error)

    def _forget(self, number: int) -> TokenNews | None:
        self._streams.discard(number)
        return self._news.pop(number, None)

    def _note(self, name: Hashable, index: int, token: int, logprob: float) -> None:
        if isinstance(name, tuple) and name[0] == _LIVE and name[1] in self._news:
            self._news[name[1]].note(token, logprob, self.engine.version)

    async def _hand_out(self, channel: Channel) -> None:
        """Tell clients what is new, and hand out what the run asked for."""
        pieces = {n: [piece] for n in self._streams if (piece := self._news[n].take())}
        pieces |= {number: [piece] for number, piece in self._ended.items()}
        if self._live is not None and (pieces or self._refused):
            news = LiveNews(self._rank, self.engine.version, pieces, self._refused)
            self._ended, self._refused = {}, {}
            # What an endpoint that died did not read is lost; the run ends by that death.
            with contextlib.suppress(ItemLost):
                await self._live.put(news, async_op=True)
        await super()._hand_out(channel)
