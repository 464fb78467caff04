"""Several engines: sessions stay, others go where there is least to do, the dead are left out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("transformers")

from rlinf.agents.serving.backend import Drawing, EngineGone, Piece  # noqa: E402
from rlinf.agents.serving.router import Router  # noqa: E402
from tests.unit_tests.agents.serving.scripted import Scripted  # noqa: E402


async def write(router: Router, session: str = "", most: int = 64) -> list[int]:
    pieces = router.generate([5], Drawing(max_new_tokens=most, seed=3), session)
    return [token async for piece in pieces for token in piece.token_ids]


async def test_a_session_stays_with_its_engine() -> None:
    engines = [Scripted("a", name="one"), Scripted("b", name="two")]
    router = Router(engines)
    engines[0].load = 1
    await write(router, "s")
    engines[0].load, engines[1].load = 0, 5
    await write(router, "s")
    assert len(engines[1].prompts) == 2 and not engines[0].prompts


async def test_others_go_to_the_least_loaded() -> None:
    engines = [Scripted("a", name="one"), Scripted("b", name="two")]
    for engine in engines:
        engine.hold_after = 0
    router = Router(engines)
    tasks = [asyncio.ensure_future(write(router)) for _ in range(4)]
    for engine in engines:
        await engine.holds.wait()
    while router.load < 4:
        await asyncio.sleep(0)
    assert [engine.load for engine in engines] == [2, 2]
    for engine in engines:
        engine.go.set()
    await asyncio.gather(*tasks)


async def test_a_response_of_a_dead_engine_is_carried_on() -> None:
    dying, other = Scripted("abcdef", name="one"), Scripted("XYZ", name="two")
    dying.die_after = 2
    told: list[tuple[str, str]] = []
    router = Router([dying, other], lambda name, why: told.append((name, why)))
    other.load = 1
    tokens = await write(router, "s", most=6)
    assert dying.tokenizer.decode(tokens) == "abXYZ<eos>"
    assert other.prompts == [[5, *tokens[:2]]], "it reads what there was"
    assert other.drawings[0].max_new_tokens == 4 and other.drawings[0].seed != 3
    assert told == [("one", "one died")]
    assert router.choose("s") is other and router.engines == [other]


async def test_no_engine_is_an_error() -> None:
    dying = Scripted("abc")
    dying.die_after = 0
    router = Router([dying])
    with pytest.raises(EngineGone, match="no engine is left"):
        await write(router)
    assert not router.alive


async def test_requests_wait_for_an_engine_to_come_back() -> None:
    dying = Scripted("abcdef", "XYZ", name="one")
    dying.die_after = 2
    router = Router([dying], patience=60.0)
    writing = asyncio.ensure_future(write(router, "s", most=6))
    while dying.alive:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not writing.done()
    assert router.alive and not router.engines, "who comes now waits, too"
    dying.die_after, dying.alive = None, True
    router.tell_return("one")
    tokens = await asyncio.wait_for(writing, 60)
    assert dying.tokenizer.decode(tokens) == "abXYZ<eos>"


async def test_patience_with_engines_that_stay_away_ends() -> None:
    dying = Scripted("abc")
    dying.die_after = 0
    router = Router([dying], patience=0.01)
    with pytest.raises(EngineGone, match="none came back in 0.01 s"):
        await write(router)


class Back(Scripted):
    """Is alive again when a reader hears of its death."""

    async def generate(self, *arguments: Any) -> AsyncIterator[Piece]:
        try:
            async for piece in super().generate(*arguments):
                yield piece
        except EngineGone:
            self.alive, self.die_after = True, None
            raise


async def test_who_hears_late_of_a_death_does_not_end_an_engine_that_is_back() -> None:
    told: list[str] = []
    engine = Back("abcd", "XY", name="one")
    engine.die_after = 2
    router = Router([engine], lambda name, why: told.append(name))
    assert engine.tokenizer.decode(await write(router, most=5)) == "abXY<eos>"
    assert not told and router.engines == [engine]
