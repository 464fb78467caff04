"""Environments of the package verifiers that hang, block, or wait for their turn."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from rlinf.agents import loop_thread, verifiers_loop  # noqa: E402
from tests.unit_tests.agents.verifiers_double import (  # noqa: E402
    Engine,
    ask,
    environment,
    make_loop,
    never,
    played,
)


def test_an_environment_that_hangs_costs_its_episode(package, monkeypatch):
    """Also in the middle of an episode, and in the rubric; others are played to their end."""
    states = []

    async def rollout(row, client, model, sampling_args):
        said = await ask(client)
        if said["content"] == "hang":
            await never()
        states.append(said["content"])
        return {"error": None, "said": said["content"]}

    async def score(state):
        if state["said"] == "no score":
            await never()
        state["reward"] = 0.5

    environment(package, monkeypatch, rollout, score)

    async def all_of_them():
        loop = make_loop(seconds=1.0)
        engines = [Engine(text) for text in ("hang", "no score", "fine")]
        return await asyncio.gather(*(played(loop, engine) for engine in engines))

    hung, unscored, fine = asyncio.run(all_of_them())
    for made in (hung, unscored):
        assert made.ending == "failed" and "did not answer within 1 s" in made.failure
    assert fine.ending == "done" and fine.score == 0.5
    assert sorted(states) == ["fine", "no score"], "what hung was cancelled"


def test_the_time_of_the_model_is_not_that_of_the_environment(package, monkeypatch):
    async def rollout(row, client, model, sampling_args):
        await ask(client)
        return {"error": None}

    environment(package, monkeypatch, rollout)

    class Slow(Engine):
        async def __call__(self, *arguments):
            # Longer than an environment may take.
            await asyncio.sleep(1.5)
            return await super().__call__(*arguments)

    assert asyncio.run(played(make_loop(seconds=1.0), Slow("7"))).score == 1.0


def test_an_environment_that_asks_in_time_is_not_late_for_a_busy_engine(package, monkeypatch):
    begun = threading.Event()

    async def rollout(row, client, model, sampling_args):
        begun.set()
        await ask(client)
        return {"error": None}

    environment(package, monkeypatch, rollout)

    async def busy():
        playing = asyncio.ensure_future(played(make_loop(seconds=1.0), Engine("7")))
        while not begun.is_set():
            await asyncio.sleep(0)
        # The loop of the engine does not come round for longer than an environment may take.
        time.sleep(1.5)
        return await playing

    assert asyncio.run(busy()).score == 1.0


def test_an_environment_that_blocks_its_thread_holds_up_no_engine(package, monkeypatch):
    """The run goes on meanwhile, and later episodes get another thread."""
    let_go, blocks = threading.Event(), threading.Event()

    async def rollout(row, client, model, sampling_args):
        said = await ask(client)
        if said["content"] == "block":
            blocks.set()
            let_go.wait(60)
        return {"error": None}

    environment(package, monkeypatch, rollout)

    async def both():
        loop = make_loop(seconds=1.0)
        blocked = asyncio.ensure_future(played(loop, Engine("block")))
        rounds = 0
        while not blocks.is_set() or rounds < 100:
            rounds += 1
            await asyncio.sleep(0)
        assert not blocked.done()
        first = await blocked
        return first, await played(loop, Engine("fine"))

    try:
        first, second = asyncio.run(both())
    finally:
        let_go.set()
    assert first.ending == "failed" and "blocks the thread of all" in first.failure
    assert second.ending == "done" and second.score == 1.0


class Together(Engine):
    """Answers when all of its kind were asked."""

    waits: list = []

    def __init__(self, count, *texts):
        super().__init__(*texts)
        self.count = count

    async def __call__(self, *arguments):
        answer = asyncio.get_running_loop().create_future()
        Together.waits.append(answer)
        if len(Together.waits) == self.count:
            for each in Together.waits:
                each.set_result(None)
            Together.waits = []
        await answer
        return await super().__call__(*arguments)


def test_environments_that_wait_for_their_turn_are_not_late(package, monkeypatch):
    """Each computes for less than the limit, and all of them for much longer.

    Two turns are less than the limit, since the clock is read while one may end.
    """
    count, seconds = 8, 60.0
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(loop_thread, "time", clock)
    looked = []

    class Looking(loop_thread.Patience):
        """Looks at its clock whenever another has computed."""

        def _look(self):
            super()._look()
            looked.append(self.passed.done())

        def count(self, turns):
            super().count(turns)
            patiences.append(self)

    async def rollout(row, client, model, sampling_args):
        await ask(client)
        clock.now += 0.45 * seconds
        at_home(look)
        return {"error": None}

    def look():
        for patience in patiences:
            if not patience.passed.done():
                patience._look()

    patiences = []
    monkeypatch.setattr(verifiers_loop, "Patience", Looking)
    environment(package, monkeypatch, rollout)

    async def all_of_them():
        nonlocal at_home
        at_home = asyncio.get_running_loop().call_soon_threadsafe
        loop = make_loop(seconds=seconds)
        engines = [Together(count, "7") for _ in range(count)]
        return await asyncio.gather(*(played(loop, engine) for engine in engines))

    at_home = None
    made = asyncio.run(all_of_them())
    assert [each.ending for each in made] == ["done"] * count
    assert clock.now > 3 * seconds and looked and not any(looked)


def test_a_blocked_thread_costs_those_who_wait_in_it(package, monkeypatch):
    """None of them waits for its own time to pass, which cannot while another has its turn."""
    let_go = threading.Event()

    async def rollout(row, client, model, sampling_args):
        said = await ask(client)
        if said["content"] == "block":
            let_go.wait(60)
        return {"error": None}

    environment(package, monkeypatch, rollout)

    async def all_of_them():
        loop = make_loop(seconds=0.5)
        engines = [Together(3, text) for text in ("block", "fine", "fine")]
        made = await asyncio.gather(*(played(loop, engine) for engine in engines))
        return made, await played(loop, Engine("fine"))

    try:
        made, later = asyncio.run(all_of_them())
    finally:
        let_go.set()
    assert [each.ending for each in made] == ["failed"] * 3
    assert all("blocks the thread of all" in each.failure for each in made)
    assert later.score == 1.0
