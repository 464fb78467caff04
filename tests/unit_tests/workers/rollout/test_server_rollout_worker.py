"""Clients and engines over channels: streams, new weights, evaluations, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rlinf.agents.serving.backend import Drawing, EngineGone, Piece
from rlinf.data.live import LiveNews, LiveRequest
from rlinf.data.reasoning import GroupRequest, Prompt
from rlinf.hybrid_engines.generation import GenerationRequest, GenerationResult, SamplingParams
from rlinf.scheduler import ItemLost
from rlinf.workers.rollout.engine_calls import EngineCalls
from rlinf.workers.rollout.engine_link import EngineLink
from rlinf.workers.rollout.server_rollout_worker import ServerRolloutWorker
from tests.unit_tests.workers.rollout.test_generation_worker import DEADLINE, Pipe, Untied


class Counter:
    """An engine that counts upwards from the last token of a prompt, a token in each step."""

    max_length = 1000

    def __init__(self) -> None:
        self.version = 0
        self.on_token: Any = None
        self.work: dict[Any, tuple[GenerationRequest, GenerationResult]] = {}
        self.may_load = True

    @property
    def unfinished(self) -> int:
        return len(self.work)

    def submit(self, requests: list[GenerationRequest]) -> None:
        for one in requests:
            if one.prompt_ids[0] < 0:
                raise ValueError("a token below 0")
            (fresh,) = one.partials or (GenerationResult(one.request_id, 0, [], [], [], "abort"),)
            self.work[one.request_id] = (one, fresh)

    def step(self) -> list[GenerationResult]:
        done = []
        for name, (one, result) in list(self.work.items()):
            token = one.prompt_ids[-1] + len(result.token_ids) + 1
            result.token_ids.append(token)
            result.logprobs.append(-1.0)
            result.versions.append(self.version)
            self.on_token(name, 0, token, -1.0)
            if len(result.token_ids) == one.params.max_new_tokens:
                result.finish_reason = "length"
                done.append(result)
                del self.work[name]
        return done

    def abort(self, names: list[Any] | None = None) -> list[GenerationResult]:
        chosen = list(self.work) if names is None else names
        return [self.work.pop(name)[1] for name in chosen]

    def stats(self) -> dict[str, float]:
        return {}


class Live(ServerRolloutWorker, Untied):
    """Lives in this process."""

    def __init__(self, engine: Counter) -> None:
        Untied.__init__(self, engine)
        self._calls = EngineCalls(engine)
        self._live, self._news, self._ended, self._refused = None, {}, {}, {}
        self._streams = set()
        engine.on_token = self._note

    def _params(self, request: GroupRequest) -> SamplingParams:
        return SamplingParams(max_new_tokens=3, seed=1)

    def _load(self) -> int:
        if not self.engine.may_load:
            raise RuntimeError("a peer died")
        self.engine.version += 1
        return self.engine.version


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[EngineLink, Live, Pipe, Pipe]]:
    worker = Live(Counter())
    requests, live, out = Pipe(), Pipe(), Pipe()
    length = await worker.connect(live)
    link = EngineLink(0, length, lambda messages: requests.put(messages, True))

    async def bring() -> None:
        while True:
            link.deliver(await live.get(0, True))

    tasks = [asyncio.ensure_future(worker.rollout(requests, out)), asyncio.ensure_future(bring())]
    try:
        yield link, worker, requests, out
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def write(link: EngineLink, first: int, count: int) -> list[Piece]:
    pieces = link.generate([first], Drawing(max_new_tokens=count))
    return [piece async for piece in pieces]


def tokens(pieces: list[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.token_ids]


async def test_clients_read_tokens_as_they_are_made() -> None:
    async with linked() as (link, _, _, _):
        found = await asyncio.wait_for(
            asyncio.gather(*(write(link, 100 * n, 20) for n in range(5))), DEADLINE
        )
    for n, pieces in enumerate(found):
        assert tokens(pieces) == [100 * n + i for i in range(1, 21)]
        assert len(pieces) > 1 and pieces[-1].finish_reason == "length"
    assert link.load == 0


async def test_what_nobody_reads_before_the_end_comes_in_one_piece() -> None:
    async with linked() as (link, worker, _, _):
        drawing = Drawing(max_new_tokens=20, whole=True)
        (piece,) = [piece async for piece in link.generate([100], drawing)]
    assert piece.token_ids == list(range(101, 121)) and len(piece.versions) == 20
    assert not worker._news and not worker._streams


async def test_no_request_fails_for_new_weights() -> None:
    """Weights come again and again while clients read; each token says which drew it."""
    async with linked() as (link, worker, _, _):
        writing = asyncio.gather(*(write(link, 100 * n, 60) for n in range(5)))
        for _ in range(8):
            for _ in range(4):
                await asyncio.sleep(0)
            await worker.sync_model_from_actor()
        found = await asyncio.wait_for(writing, DEADLINE)
    for n, pieces in enumerate(found):
        assert tokens(pieces) == [100 * n + i for i in range(1, 61)], "none lost, none twice"
        versions = [version for piece in pieces for version in piece.versions]
        assert len(set(versions)) > 1 and versions == sorted(versions)
    assert link.version == worker.engine.version


async def test_an_evaluation_does_not_keep_clients_waiting() -> None:
    async with linked() as (link, worker, requests, out):
        prompt = Prompt(0, [7], "", "", "t", {})
        # Once more, as when an engine has died that was asked.
        await requests.put([GroupRequest(prompt, 1, "validation", True)] * 2, True)
        pieces = await asyncio.wait_for(write(link, 10, 5), DEADLINE)
        group = await asyncio.wait_for(out.get(0, True), DEADLINE)
    assert tokens(pieces) == [11, 12, 13, 14, 15]
    assert group.samples[0].response_ids == [8, 9, 10] and out._items.empty()


async def test_a_client_that_leaves_frees_the_engine() -> None:
    async with linked() as (link, worker, _, _):
        pieces = link.generate([1], Drawing(max_new_tokens=10**6))
        async for _ in pieces:
            break
        await pieces.aclose()
        while worker.engine.unfinished:
            await asyncio.sleep(0)
        assert link.load == 0 and not worker._news
        assert tokens(await write(link, 5, 2)) == [6, 7]


async def test_a_request_that_is_refused_hurts_nobody_else() -> None:
    async with linked() as (link, _, _, _):
        with pytest.raises(ValueError, match="below 0"):
            await asyncio.wait_for(write(link, -1, 2), DEADLINE)
        assert tokens(await asyncio.wait_for(write(link, 5, 2), DEADLINE)) == [6, 7]


async def test_a_dead_worker_fails_what_waits_for_it() -> None:
    async def send(messages: list[Any]) -> None: ...

    link = EngineLink(0, 100, send)
    writing = asyncio.ensure_future(write(link, 1, 5))
    while not link.load:
        await asyncio.sleep(0)
    link.deliver(LiveNews(0, 3))
    link.fail("it died")
    with pytest.raises(EngineGone, match="it died"):
        await writing
    assert not link.alive and link.version == 3
    with pytest.raises(EngineGone, match="it died"):
        await write(link, 1, 5)


async def test_an_endpoint_that_dies_with_news_does_not_end_the_engine() -> None:
    """Its own death is what the run hears of."""
    async with linked() as (link, worker, requests, _):
        put = worker._live.put

        async def refused(item: Any, async_op: bool) -> None:
            worker._live.put = put
            raise ItemLost("the endpoint died with 1 item(s) of channel 'live'")

        worker._live.put = refused
        await requests.put([LiveRequest(999, [7], Drawing(max_new_tokens=1))], True)
        assert tokens(await asyncio.wait_for(write(link, 5, 2), DEADLINE))[-1:] == [7]
        assert worker._live.put == put


async def test_a_worker_that_was_started_anew_begins_with_its_weights() -> None:
    """It drops what the dead one did not read, and computes nothing before its weights come."""
    async with linked() as (link, worker, requests, _):
        worker._loading = True
        lost = asyncio.ensure_future(write(link, 50, 5))
        while not worker._calls.holds:
            await asyncio.sleep(0)
        link.fail("it died")
        with pytest.raises(EngineGone):
            await lost
        link.revive()
        writing = asyncio.ensure_future(write(link, 10, 3))
        while len(worker._news) != 1 or not worker._calls.holds:
            await asyncio.sleep(0)
        assert not worker.engine.work, "there are no weights yet"
        await worker.sync_model_from_actor()
        pieces = await asyncio.wait_for(writing, DEADLINE)
    assert tokens(pieces) == [11, 12, 13]
    assert {version for piece in pieces for version in piece.versions} == {1}


async def test_nothing_is_computed_with_a_part_of_the_weights() -> None:
    async with linked() as (link, worker, _, _):
        worker.engine.may_load = False
        with pytest.raises(RuntimeError, match="a peer died"):
            await worker.sync_model_from_actor()
        writing = asyncio.ensure_future(write(link, 10, 3))
        while not worker._calls.holds:
            await asyncio.sleep(0)
        assert not worker.engine.work
        worker.engine.may_load = True
        await worker.sync_model_from_actor()
        assert tokens(await asyncio.wait_for(writing, DEADLINE)) == [11, 12, 13]
