"""Sessions of episodes: seeds, ends and stops of turns, and what a real engine computes anew."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
import torch

from rlinf.agents.episode import EpisodeOver
from rlinf.agents.loops import AgentLoop
from rlinf.agents.tools.toolbox import Toolbox
from rlinf.hybrid_engines.generation import SamplingParams
from rlinf.hybrid_engines.generation.hf.engine import HFEngine
from rlinf.workers.rollout.engine_calls import EngineCalls
from rlinf.workers.rollout.engine_session import EngineSession
from tests.unit_tests.hybrid_engines.generation.tiny import logprobs, tiny
from tests.unit_tests.workers.rollout.test_agent_loop_worker import (
    WORDS,
    Agents,
    Writer,
    ask,
    check_exact,
    ids,
    serve,
)


def by_seed(prompt, params):
    """Words that follow from the seed alone, as many as it says."""
    draw = random.Random(params.seed)
    return [draw.choice(ids("0 1 2 3")) for _ in range(draw.randint(1, 6))] + [WORDS.eos_token_id]


class Apart(AgentLoop):
    """Two agents of two turns each; one may be held up by other things in between."""

    def __init__(self, rests):
        super().__init__(None, WORDS, Toolbox([]))
        self.rests = rests

    async def run(self, episode):
        async def agent(number):
            start = [*episode.question.prompt_ids, number]
            for _ in range(2):
                for _ in range(self.rests[number - 1]):
                    await asyncio.sleep(0)
                start = [*(await episode.generate(start, agent=number)).token_ids, number]

        await asyncio.gather(agent(1), agent(2))
        return episode.finish()


async def test_a_turn_draws_the_same_whatever_others_do_meanwhile():
    found = []
    for rests in ((0, 0), (0, 50), (90, 0), (3, 200)):
        worker = Agents(Writer(by_seed), Apart(rests))
        (group,) = await serve(worker, ask(0, size=3))
        found.append(
            sorted((s.trajectory, s.agents[0], tuple(s.response_ids)) for s in group.samples)
        )
        check_exact([group], worker.engine)
    assert all(each == found[0] for each in found)
    assert len({each[2] for each in found[0]}) > 3


async def test_an_ended_episode_leaves_the_engine():
    class Ends(AgentLoop):
        async def run(self, episode):
            async def endless(number):
                await episode.generate([*episode.question.prompt_ids, number], agent=number)

            async def short():
                await episode.generate(episode.question.prompt_ids)
                raise EpisodeOver("max_turns")

            await asyncio.gather(endless(1), endless(2), short())

    def says(prompt, params):
        return [1] * 3 if prompt == ids("1+2") else [2] * 9

    worker = Agents(Writer(says), Ends(None, WORDS, Toolbox([])))
    (group,) = await serve(worker, ask(0, size=2))
    assert worker.engine.unfinished == 0
    assert len(worker.engine.batches) == 3 and len(worker.engine.batches[0]) == 6
    # What was aborted is not learnt.
    assert [sample.response_ids for sample in group.samples] == [[1] * 3] * 2
    assert [episode.ending for episode in group.episodes] == ["max_turns"] * 2
    check_exact([group], worker.engine)


async def test_an_agent_that_goes_on_after_the_end_asks_nothing():
    late = []

    class Late(AgentLoop):
        async def run(self, episode):
            async def straggler():
                for _ in range(200):
                    await asyncio.sleep(0)
                try:
                    await episode.generate([5], agent=1)
                finally:
                    late.append(len(episode.calls))

            self.task = asyncio.ensure_future(straggler())
            await episode.generate(episode.question.prompt_ids)
            return episode.finish()

    loop = Late(None, WORDS, Toolbox([]))
    worker = Agents(Writer(by_seed), loop)
    await serve(worker, ask(0, size=1))
    with pytest.raises(asyncio.CancelledError):
        await loop.task
    assert late == [1] and worker.engine.unfinished == 0


async def test_what_is_held_is_cancelled_there():
    engine = Writer(by_seed)
    calls = EngineCalls(engine)
    session = EngineSession(calls, ("a",), 0)
    params = SamplingParams(seed=1, max_new_tokens=4)
    asking = asyncio.ensure_future(session.ask([1], params, agent=0, hold=True))
    await asyncio.sleep(0)
    assert calls.holds and engine.unfinished == 0
    session.end()
    assert not calls.holds
    calls.carry_on()
    assert engine.unfinished == 0
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_turns_have_stops_of_their_own():
    seen = []

    class Stops(AgentLoop):
        async def run(self, episode):
            start = episode.question.prompt_ids
            for stop in (None, (), ("3", "</answer>")):
                start = (await episode.generate(start, stop=stop)).token_ids
            return episode.finish()

    def says(prompt, params):
        seen.append(params.stop_token_ids)
        return [1]

    worker = Agents(Writer(says), Stops(None, WORDS, Toolbox([])))
    worker.cfg.rollout = SimpleNamespace(rollout_backend="hf")
    worker.cfg.algorithm = SimpleNamespace(sampling_params=SimpleNamespace(stop=["+"]))
    await serve(worker, ask(0, size=1))
    of_loop, none, own = dict.fromkeys(seen)
    end, plus = WORDS.eos_token_id, ids("+")[0]
    assert of_loop == () and set(none) == {end, plus}
    assert set(own) == {end, plus, *ids("3"), *ids("</answer>")}


# -- a real engine ---------------------------------------------------------------------------------

BLOCK = 64


class Chat(AgentLoop):
    """Reads something new before each turn."""

    turns, news = 3, 40

    async def run(self, episode):
        said = list(episode.question.prompt_ids)
        for turn in range(self.turns):
            said += [2 + (turn + place) % 40 for place in range(self.news)]
            said = list((await episode.generate(said)).token_ids)
        return episode.finish()


class Real(Agents):
    """Episodes over our own engine, whose weights change when a test says so."""

    def __init__(self, model, **options):
        engine = HFEngine(model, max_length=250, max_running=8, device="cpu", **options)
        super().__init__(engine, Chat(None, WORDS, Toolbox([])), max_total_tokens=250)

    def _params(self, request):
        return SamplingParams(max_new_tokens=30, seed=5, ignore_eos=True)

    def _load(self):
        with torch.no_grad():
            for parameter in self.engine.model.parameters():
                parameter.mul_(0.9)
        self.engine.weights_changed(self.engine.version + 1)
        return self.engine.version


def question():
    request = ask(0, size=2)
    request.prompt.token_ids = [3, 4, 5]
    return request


async def test_later_turns_compute_what_is_new():
    (reused,), (whole,) = [
        await serve(Real(tiny(), paged=True, reuse_prefixes=reuse), question())
        for reuse in (True, False)
    ]
    prompts = [3 + 40, 43 + 30 + 40, 113 + 30 + 40]
    # The second episode of a question waits beside the first, and reads the prompt with it.
    least = 43 + 113 % BLOCK + 183 % BLOCK
    for group, computed in ((whole, [sum(prompts)] * 2), (reused, [least, least - 43])):
        for episode in group.episodes:
            assert episode.numbers["prompt_tokens"] == sum(prompts)
            assert episode.numbers["total_tokens"] == episode.numbers["context_tokens"] == 183 + 30
        found = [episode.numbers["computed_tokens"] for episode in group.episodes]
        assert found == computed
        reuse = [episode.numbers["prefix_reuse"] for episode in group.episodes]
        assert reuse == pytest.approx([1 - each / sum(prompts) for each in found])
    ids_of = [[sample.response_ids for sample in group.samples] for group in (reused, whole)]
    assert ids_of[0] == ids_of[1]


async def test_tokens_of_new_weights_are_theirs_across_turns():
    worker = Real(tiny(), paged=True)
    model = worker.engine.model
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    async def update():
        while worker.engine.stats()["new_tokens"] < 2 * 45:
            await asyncio.sleep(0)
        await worker.sync_model_from_actor()

    (group,) = await serve(worker, question(), between=update)
    second = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for sample in group.samples:
        assert set(sample.versions) == {0, 1} and sample.versions == sorted(sample.versions)
        changed = sample.versions.index(1)
        assert 70 < changed < len(sample.versions) - 1
        for version, state in enumerate((first, second)):
            model.load_state_dict(state)
            expected = logprobs(model, sample.prompt_ids, sample.response_ids)
            for place, own in enumerate(sample.loss_mask):
                if own and sample.versions[place] == version:
                    assert sample.logprobs[place] == pytest.approx(float(expected[place]), abs=1e-4)
    # The turn that was under way was read again.
    assert group.episodes[0].numbers["computed_tokens"] > 43 + 113 % BLOCK + 183 % BLOCK


async def test_whoever_is_cancelled_as_the_answer_comes_ends_alone():
    calls = EngineCalls(Writer(lambda prompt, params: [1, WORDS.eos_token_id]))
    session = EngineSession(calls, ("a",), 0)
    params = SamplingParams(seed=1, max_new_tokens=4)
    asking = asyncio.ensure_future(session.ask([1], params, agent=0, hold=False))
    await asyncio.sleep(0)
    asking.cancel()
    calls.step()
    calls.step()
    with pytest.raises(asyncio.CancelledError):
        await asking
