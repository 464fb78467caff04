"""Many episodes over one engine: exact tokens across weight updates, limits, and repeatability."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.agents.loops import AgentLoop, SingleTurnLoop, ToolLoop
from rlinf.agents.tools.tool import Tool
from rlinf.agents.tools.toolbox import Toolbox, ToolFailed
from rlinf.data.reasoning import GroupRequest, Prompt
from rlinf.data.token_batch import TokenBatch
from rlinf.data.tokenizer import word_tokenizer
from rlinf.hybrid_engines.generation import GenerationRequest, GenerationResult, SamplingParams
from rlinf.workers.rollout.agent_loop_worker import AgentLoopWorker
from rlinf.workers.rollout.engine_calls import EngineCalls
from tests.unit_tests.workers.rollout.test_generation_worker import DEADLINE, Pipe, Untied

WORDS = word_tokenizer(
    "<unk> 0 1 2 3 + error: <calculator> </calculator> <slow> </slow> <information> </information> "
    "<answer> </answer>".split()
)


def ids(text: str) -> list[int]:
    return WORDS.encode(text)


class Writer:
    """An engine that writes what a function says of a prompt, a token in each step.

    Attributes:
        log: prompt and response of every request, in the order in which they were complete.
        batches: names of the requests of each step.
    """

    def __init__(self, says: Any) -> None:
        self.version, self.log, self.batches = 0, [], []
        self._says, self._work = says, {}

    @property
    def unfinished(self) -> int:
        return len(self._work)

    def submit(self, requests: list[GenerationRequest]) -> None:
        for one in requests:
            (fresh,) = one.partials or (GenerationResult(one.request_id, 0, [], [], [], "abort"),)
            self._work[one.request_id] = (one, fresh)

    def step(self) -> list[GenerationResult]:
        self.batches.append(sorted(map(repr, self._work)))
        finished = []
        for name, (one, result) in list(self._work.items()):
            wanted = self._says(one.prompt_ids, one.params)
            result.token_ids.append(wanted[len(result.token_ids)])
            result.logprobs.append(-0.25 * len(self.batches))
            result.versions.append(self.version)
            full = len(result.token_ids) == one.params.max_new_tokens
            if full or len(result.token_ids) == len(wanted):
                done = len(result.token_ids) == len(wanted)
                result.finish_reason = "stop" if done else "length"
                finished.append(result)
                self.log.append((tuple(one.prompt_ids), result))
                del self._work[name]
        return finished

    def abort(self, request_ids: Any = None) -> list[GenerationResult]:
        names = list(self._work) if request_ids is None else list(request_ids)
        return [self._work.pop(name)[1] for name in names]

    def stats(self) -> dict[str, float]:
        return {"steps": float(len(self.batches))}


class Agents(AgentLoopWorker, Untied):
    """Lives in this process."""

    def __init__(self, engine: Writer, loop: AgentLoop | None = None, **section: Any) -> None:
        Untied.__init__(self, engine)
        self.warnings: list[str] = []
        self._calls, self._groups, self._sessions = EngineCalls(engine), set(), {}
        self._tokenizer, self._tools = WORDS, Toolbox(["calculator"])
        self._endings = {}
        settings = {"max_turns": 3, "max_total_tokens": 64, "overlong": "score"}
        self.cfg = SimpleNamespace(
            agentloop=SimpleNamespace(parser="searchr1", **settings | section),
            runner=SimpleNamespace(seq_length=64),
        )
        self._loop = loop or ToolLoop(self.cfg.agentloop, WORDS, self._tools)

    def _params(self, request: GroupRequest) -> SamplingParams:
        return SamplingParams(max_new_tokens=16, seed=5)

    def _load(self) -> int:
        self.engine.version += 1
        return self.engine.version

    def log_warning(self, message: str) -> None:
        self.warnings.append(message)


def ask(index: int, size: int = 2, validation: bool = False, text: str = "1+2") -> GroupRequest:
    return GroupRequest(Prompt(index, ids(text), text, "3", "sums", {}), size, 0, validation)


def careful(prompt: list[int], params: SamplingParams) -> list[int]:
    """Ask once, then answer; how is drawn by the seed of the turn."""
    answered = WORDS.convert_tokens_to_ids("</information>") in prompt
    if answered:
        return [*ids("<answer>3</answer>"), WORDS.eos_token_id]
    return ids(f"<calculator>1+{random.Random(params.seed).randint(1, 3)}</calculator>")


def again(prompt: list[int], params: SamplingParams) -> list[int]:
    return ids("<calculator>1+</calculator>")


async def serve(worker: Agents, *requests: GroupRequest, between: Any = None) -> list[Any]:
    channel, out = Pipe(), Pipe()
    serving = asyncio.ensure_future(worker.rollout(channel, out))
    await channel.put(list(requests), True)
    if between is not None:
        await between()
    groups = []
    while len(groups) < len(requests):
        taking = asyncio.ensure_future(out.get(0, True))
        await asyncio.wait({taking, serving}, return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE)
        if not taking.done():
            serving.result()
        groups.append(taking.result())
    await channel.put(None, True)
    await asyncio.wait_for(serving, DEADLINE)
    return sorted(groups, key=lambda group: group.prompt.index)


def check_exact(groups: list[Any], engine: Writer) -> None:
    """All that counts is what the engine wrote, behind what it had read, once."""
    found = []
    for group in groups:
        for sample in group.samples:
            whole, start = sample.prompt_ids + sample.response_ids, len(sample.prompt_ids)
            first = None
            for i, own in enumerate([*sample.loss_mask, False]):
                if own and first is None:
                    first = i
                elif not own and first is not None:
                    part = slice(first, i)
                    found.append(
                        (
                            tuple(whole[: start + first]),
                            tuple(sample.response_ids[part]),
                            tuple(sample.logprobs[part]),
                            tuple(sample.versions[part]),
                        )
                    )
                    first = None
    expected = [
        (prompt, tuple(r.token_ids), tuple(r.logprobs), tuple(r.versions))
        for prompt, r in engine.log
    ]
    assert sorted(found) == sorted(expected)


async def test_episodes_are_what_the_engine_wrote_across_weight_updates():
    engine = Writer(careful)
    worker = Agents(engine)

    async def update() -> None:
        for _ in range(6):
            for _ in range(3):
                await asyncio.sleep(0)
            await worker.sync_model_from_actor()

    groups = await serve(worker, *(ask(i, size=4) for i in range(5)), between=update)
    check_exact(groups, engine)
    versions = {v for g in groups for s in g.samples for v in s.versions}
    assert len(versions) > 1
    assert all(group.episodes[0].numbers["tool_calls"] == 1.0 for group in groups)
    assert all(episode.answer == "<answer>3</answer>" for g in groups for episode in g.episodes)
    for group in groups:
        for sample in group.samples:
            sample.reward = 1.0
    assert TokenBatch.of(groups).num_sequences == 20


async def test_turns_and_samples_have_seeds_of_their_own():
    worker = Agents(Writer(careful))
    (group,) = await serve(worker, ask(0, size=12))
    assert len({tuple(sample.response_ids) for sample in group.samples}) == 3


async def test_the_same_requests_share_the_same_batches():
    runs = []
    for _ in range(2):
        engine = Writer(careful)
        await serve(Agents(engine), *(ask(i, size=3) for i in range(4)))
        runs.append(engine.batches)
    assert runs[0] == runs[1]
    # All go on together: nobody's turn waits for another step.
    assert len(runs[0]) == 5 + 4


@pytest.mark.parametrize(
    ("overlong", "validation", "score", "left_out"),
    [
        ("score", False, None, False),
        ("zero", False, 0.0, False),
        ("drop", False, 0.0, True),
        ("drop", True, None, False),
    ],
)
async def test_what_becomes_of_episodes_that_are_too_long(overlong, validation, score, left_out):
    worker = Agents(Writer(again), overlong=overlong)
    (group,) = await serve(worker, ask(0, validation=validation))
    assert [sample.left_out for sample in group.samples] == [left_out] * 2
    assert {sample.finish_reason for sample in group.samples} == {"length"}
    assert [episode.score for episode in group.episodes] == [score] * 2
    assert group.episodes[0].numbers | {"overlong": 1.0} == group.episodes[0].numbers
    assert group.episodes[0].numbers["tool_errors"] == 2.0 + 1.0
    check_exact([group], worker.engine)


async def test_training_waits_while_the_engine_evaluates():
    engine = Writer(careful)
    worker = Agents(engine)
    worker._kept = None
    channel, out = Pipe(), Pipe()
    serving = asyncio.ensure_future(worker.rollout(channel, out))
    await channel.put([ask(0)], True)
    while not engine.batches:
        await asyncio.sleep(0)
    await worker.begin_evaluation(keep_weights=False)
    await channel.put([ask(1), ask(9, validation=True)], True)
    first = await asyncio.wait_for(out.get(0, True), DEADLINE)
    assert first.validation and out._items.empty()
    await worker.end_evaluation()
    others = [await asyncio.wait_for(out.get(0, True), DEADLINE) for _ in range(2)]
    assert {group.prompt.index for group in others} == {0, 1}
    check_exact([first, *others], engine)
    await channel.put(None, True)
    await asyncio.wait_for(serving, DEADLINE)


async def test_a_failure_beside_the_policy_leaves_the_group():
    async def slow(x: str) -> str:
        """Fail."""
        raise ToolFailed("the tool 'slow' did not answer")

    box = Toolbox([Tool(slow)])
    section = SimpleNamespace(parser="searchr1")

    def says(prompt, params):
        text = "<slow>1</slow>" if random.Random(params.seed).random() < 0.5 else "<answer>"
        return ids(text)

    worker = Agents(Writer(says), ToolLoop(section, WORDS, box))
    worker._tools = box
    (group,) = await serve(worker, ask(0, size=8))
    failed = [bool(episode.failure) for episode in group.episodes]
    assert 0 < sum(failed) < 8
    assert [sample.left_out for sample in group.samples] == failed
    assert worker.warnings == ["an episode of prompt 0 failed: the tool 'slow' did not answer"]
    check_exact([group], worker.engine)


async def test_a_mistake_in_a_loop_ends_the_run():
    class Wrong(SingleTurnLoop):
        async def run(self, episode):
            await episode.generate(episode.question.prompt_ids)
            raise KeyError("a mistake")

    worker = Agents(Writer(careful), Wrong(None, WORDS, Toolbox([])))
    with pytest.raises(KeyError, match="a mistake"):
        await serve(worker, ask(0))


async def test_tools_that_take_their_time_hold_up_nobody_else():
    asked, answered = asyncio.Event(), asyncio.Event()

    async def slow(x: str) -> str:
        """Answer later."""
        asked.set()
        await answered.wait()
        return "3"

    box = Toolbox([Tool(slow), "calculator"])
    section = SimpleNamespace(parser="searchr1")

    def says(prompt, params):
        if WORDS.convert_tokens_to_ids("</information>") in prompt:
            return ids("<answer>3</answer>")
        return ids("<slow>1</slow>" if prompt[0] == ids("3")[0] else "<calculator>1</calculator>")

    worker = Agents(Writer(says), ToolLoop(section, WORDS, box))
    worker._tools = box
    channel, out = Pipe(), Pipe()
    serving = asyncio.ensure_future(worker.rollout(channel, out))
    await channel.put([ask(0, text="3"), ask(1)], True)
    first = await asyncio.wait_for(out.get(0, True), DEADLINE)
    assert first.prompt.index == 1 and asked.is_set()
    await channel.put(None, True)
    answered.set()
    second = await asyncio.wait_for(out.get(0, True), DEADLINE)
    assert second.prompt.index == 0
    await asyncio.wait_for(serving, DEADLINE)


async def test_without_tools_a_call_is_that_of_an_unknown_tool():
    request = ask(0, size=1, validation=True)
    request.tools = False
    groups = await serve(Agents(Writer(careful)), request, ask(1, size=1, validation=True))
    without, usual = (group.episodes[0] for group in groups)
    assert without.numbers["tool_calls"] == without.numbers["tool_errors"] == 1.0
    (said,) = [turn for turn in without.turns if turn["role"] == "tool"]
    assert said["error"] and "there is no tool 'calculator'</information>" in said["text"]
    # What was asked is not answered, and the prompt is the same.
    assert usual.numbers["tool_errors"] == 0.0
    assert groups[0].samples[0].prompt_ids == groups[1].samples[0].prompt_ids


class Meeting(ToolLoop):
    """Plays as its base does; but after the first turn each waits until all have come so far."""

    def __init__(self, count: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.count, self.here, self.most = count, 0, 0
        self.all_here = asyncio.Event()

    async def use(self, *arguments: Any) -> Any:
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == self.count:
            self.all_here.set()
        await self.all_here.wait()
        try:
            return await super().use(*arguments)
        finally:
            self.here -= 1


async def test_thousands_of_episodes_are_under_way_at_once():
    """All are in the middle of their episode at one moment, also when weights come."""
    groups, size = 500, 8
    asks, answers = ids("<calculator>1+2</calculator>"), [*ids("3"), WORDS.eos_token_id]
    told = WORDS.convert_tokens_to_ids("</information>")
    engine = Writer(lambda prompt, params: answers if told in prompt else asks)
    section = SimpleNamespace(parser="searchr1")
    loop = Meeting(groups * size, section, WORDS, Toolbox(["calculator"]))
    worker = Agents(engine, loop)
    worker._tools = loop.tools

    async def update() -> None:
        while not engine.batches:
            await asyncio.sleep(0)
        assert engine.unfinished == groups * size
        await worker.sync_model_from_actor()
        await asyncio.wait_for(loop.all_here.wait(), DEADLINE)
        await worker.sync_model_from_actor()

    made = await serve(worker, *(ask(i, size=size) for i in range(groups)), between=update)
    assert loop.most == groups * size
    assert [len(group.episodes) for group in made] == [size] * groups
    assert all(episode.ending == "done" for group in made for episode in group.episodes)
    check_exact(made, engine)
    assert not worker._sessions and not worker._groups and not engine.unfinished
