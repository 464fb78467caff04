"""The rollout worker of language models: what it generates with is what the actor has."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from rlinf.data.reasoning import GroupRequest, Prompt
from rlinf.data.tokenizer import stops_of, tokenizer_of_run
from rlinf.hybrid_engines.generation import (
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from rlinf.scheduler import Channel, ChannelClosed, wait_all
from rlinf.workers.rollout.engine_calls import EngineCalls
from rlinf.workers.rollout.generation_worker import GenerationWorker
from tests.unit_tests.workers.actor.reasoning import make_cfg, make_groups, make_learner
from tests.unit_tests.workers.actor.test_reasoning_actor import TriedActor, slots
from tests.unit_tests.workers.short_channels import pause, short_channel


class TriedRollout(GenerationWorker):
    """Tells what it has."""

    async def tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.engine.model.state_dict().items()}


def sync(actor, rollout):
    received, sent = rollout.sync_model_from_actor(), actor.sync_model_to_rollout()
    wait_all(received, sent)
    return received.wait()[0], sent.wait()[0]


@pytest.mark.timeout(120)
def test_adapters_alone_make_the_weights_that_the_actor_has_merged(cluster, tmp_path):
    base = make_learner(make_cfg()).engine.model
    base.save_folder(tmp_path, dict(base.policy_tensors(lambda tensor: tensor)))
    section = {"model_type": "qwen3", "model_path": str(tmp_path), "is_lora": True, "lora_rank": 4}
    cfg = make_cfg(
        {
            "actor.model": section,
            "weight_syncer.lora": "adapters",
            "actor.tokenizer.tokenizer_model": "characters:0123456789",
        }
    )
    actor = TriedActor.create_group(cfg).launch(cluster, slots(1), name="ActorGroup")
    rollout = TriedRollout.create_group(cfg).launch(cluster, slots(1), name="RolloutGroup")
    wait_all(actor.init_worker(10), rollout.init_worker())
    sync(actor, rollout)
    before = rollout.tensors().wait()[0]
    start = base.plain.state_dict()
    assert all(torch.equal(tensor, start[name]) for name, tensor in before.items())

    channel = Channel.create("groups")
    # Merging begins from the base each time: nothing adds up over versions.
    for step in range(2):
        learning = actor.run_training(channel)
        channel.put_batch(make_groups(base, seed=step, version=step))
        learning.wait()
        version, size = sync(actor, rollout)
        merged, own = actor.merged().wait()[0], rollout.tensors().wait()[0]
        assert version == step + 1 and size < sum(t.nbytes for t in merged.values()) / 2
        for name, tensor in merged.items():
            assert torch.equal(tensor, own[name]), name
            assert torch.equal(tensor, start[name]) != ("proj" in name), name
    evidence = rollout.evidence().wait()
    assert actor.find_differences(evidence).wait() == [[]] and evidence[0].version == 2


# -- groups that are complete when new weights come ------------------------------------------------

DEADLINE = 60


class Idler:
    """An engine that finishes what it has when it is told to abort."""

    def __init__(self) -> None:
        self._work: list[GenerationRequest] = []
        self.stepped = asyncio.Event()

    @property
    def unfinished(self) -> int:
        return len(self._work)

    def submit(self, work: list[GenerationRequest]) -> None:
        self._work += work

    def step(self) -> list[GenerationResult]:
        self.stepped.set()
        return []

    def abort(self) -> list[GenerationResult]:
        work, self._work = self._work, []
        return [
            GenerationResult(one.request_id, index, [1, 2], [0.0, 0.0], [0, 0], "stop")
            for one in work
            for index in range(one.n)
        ]

    def stats(self) -> dict[str, float]:
        return {}


class Pipe:
    """A channel of this event loop."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    async def put(self, item: Any, async_op: bool) -> None:
        await self._items.put(item)

    async def get(self, key: int, async_op: bool, timeout: float | None = None) -> Any:
        item = await self._items.get()
        if item is None:
            raise ChannelClosed("requests")
        return item


class Untied(GenerationWorker):
    """Lives in this process, with an engine that is given."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Untied:
        return object.__new__(cls)

    def __init__(self, engine: Any) -> None:
        self._rank, self._complete, self._came = 0, [], asyncio.Event()
        self._calls = EngineCalls(engine)
        self._notes = self._asleep = self._evaluating = self._loading = False
        self._kept = None
        self.engine = self._weights = engine

    def worker_timer(self, tag: str | None = None) -> Any:
        return nullcontext()

    def _params(self, request: GroupRequest) -> SamplingParams:
        return SamplingParams()

    def _load(self) -> int:
        return 1


@pytest.mark.parametrize("closed", [False, True])
async def test_a_group_that_is_complete_when_weights_come_is_handed_out(closed):
    """Nothing is left for the engine to do, and nobody asks for more."""
    worker = Untied(Idler())
    requests, responses = Pipe(), Pipe()
    serving = asyncio.ensure_future(worker.rollout(requests, responses))
    prompt = Prompt(7, [1], "", None, "", {})
    await requests.put([GroupRequest(prompt, 2, key=0)], True)
    await asyncio.wait_for(worker.engine.stepped.wait(), DEADLINE)
    if closed:
        await requests.put(None, True)
    assert await worker.sync_model_from_actor() == 1
    group = await asyncio.wait_for(responses.get(0, True), DEADLINE)
    assert (group.prompt.index, len(group.samples)) == (7, 2)
    assert not worker._complete
    if not closed:
        assert not serving.done()
        await requests.put(None, True)
    await asyncio.wait_for(serving, DEADLINE)


async def test_it_serves_after_a_pause_that_is_longer_than_the_deadline_of_channels():
    """As a supervised start is, or the step of others."""
    worker = Untied(Idler())
    requests, responses = short_channel("requests"), Pipe()
    serving = asyncio.ensure_future(worker.rollout(requests, responses))
    for index in range(2):
        await pause()
        assert not serving.done()
        prompt = Prompt(index, [1], "", None, "", {})
        requests.put([GroupRequest(prompt, 2, key=0)], key=0)
        await asyncio.wait_for(worker.engine.stepped.wait(), DEADLINE)
        worker.engine.stepped.clear()
        await worker.sync_model_from_actor()
        group = await asyncio.wait_for(responses.get(0, True), DEADLINE)
        assert group.prompt.index == index
    requests.close()
    await asyncio.wait_for(serving, DEADLINE)


# -- responses that are set aside -----------------------------------------------------------------

LENGTH = 8


class Typist:
    """An engine of its own version, which writes one token of each response when it is told to."""

    def __init__(self) -> None:
        self.version, self.asleep, self.weights = 0, False, {"w": torch.zeros(1)}
        self.weights_awake = True
        self._work: dict[Any, GenerationResult] = {}
        self.typed = asyncio.Event()

    def forget(self) -> None:
        """As that of what receives weights: they have been changed."""

    @property
    def unfinished(self) -> int:
        return len(self._work)

    def submit(self, work: list[GenerationRequest]) -> None:
        assert not self.asleep
        for one in work:
            fresh = [GenerationResult(one.request_id, i, [], [], [], "abort") for i in range(one.n)]
            for result in one.partials or fresh:
                self._work[one.request_id, result.sample_index] = result

    def step(self) -> list[GenerationResult]:
        assert not self.asleep
        self.typed.set()
        for result in self._work.values():
            result.token_ids.append(1)
            result.logprobs.append(float(self.weights["w"]))
            result.versions.append(self.version)
        done = [key for key, result in self._work.items() if len(result.token_ids) == LENGTH]
        finished = [self._work.pop(key) for key in done]
        for result in finished:
            result.finish_reason = "stop"
        return finished

    def abort(self) -> list[GenerationResult]:
        work, self._work = self._work, {}
        return list(work.values())

    def sleep(self, weights: str) -> None:
        assert not self.asleep and not self._work and weights == "offload"
        self.asleep, self.weights_awake = True, False

    def wake(self, weights_only: bool = False) -> None:
        assert self.asleep
        self.asleep, self.weights_awake = weights_only, True

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        return list(self.weights.items())

    def update_weights(self, named: dict[str, torch.Tensor], version: int) -> None:
        assert self.weights_awake and not self._work
        self.weights, self.version = dict(named), version

    def stats(self) -> dict[str, float]:
        return {}


class Served(Untied):
    """Gets weights whose number and value are those of its next version."""

    newest = 0

    def _load(self) -> int:
        self.engine.update_weights({"w": torch.tensor([float(self.newest)])}, self.newest)
        return self.newest


class Run:
    """A worker that serves, and what goes in and out."""

    def __init__(self) -> None:
        self.worker = Served(Typist())
        self.requests, self.responses = Pipe(), Pipe()
        self.serving = asyncio.ensure_future(self.worker.rollout(self.requests, self.responses))

    async def ask(self, index: int, key: Any = 0, validation: bool = False) -> None:
        prompt = Prompt(index, [1], "", None, "", {})
        await self.requests.put([GroupRequest(prompt, 2, key, validation)], True)

    async def typed(self) -> None:
        """Waits until another token was written."""
        self.worker.engine.typed.clear()
        await asyncio.wait_for(self.worker.engine.typed.wait(), DEADLINE)

    async def sync(self, version: int) -> None:
        self.worker.newest = version
        assert await self.worker.sync_model_from_actor() == version

    async def group(self) -> Any:
        return await asyncio.wait_for(self.responses.get(0, True), DEADLINE)

    async def end(self) -> None:
        await self.requests.put(None, True)
        await asyncio.wait_for(self.serving, DEADLINE)


def honest(group: Any) -> bool:
    """Whether tokens have the versions of the weights that wrote them."""
    return all(s.logprobs == [float(v) for v in s.versions] for s in group.samples)


async def idle() -> None:
    """Lets the loop of the worker have many turns."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("new_weights", [True, False])
async def test_an_engine_that_sleeps_carries_on_when_it_wakes(new_weights):
    """As with rollout.enable_offload and max_policy_age, or weight_sync_interval, above 0 or 1."""
    run = Run()
    await run.sync(1)
    await run.ask(7)
    await run.typed()
    await run.worker.offload_engine()
    assert run.worker.engine.asleep
    await run.ask(8)
    await idle()
    assert run.worker.engine.unfinished == 0 and not run.serving.done()
    if new_weights:
        await run.sync(2)
    else:
        await run.worker.onload_engine()
    first, second = await run.group(), await run.group()
    assert [first.prompt.index, second.prompt.index] == [7, 8]
    versions = first.samples[0].versions
    assert len(versions) == LENGTH and versions[0] == 1 and versions[-1] == 1 + new_weights
    assert set(second.samples[0].versions) == {1 + new_weights}
    assert honest(first) and honest(second)
    await run.end()


@pytest.mark.parametrize("keep", [True, False])
async def test_an_evaluation_leaves_training_alone(keep):
    run = Run()
    await run.sync(1)
    await run.ask(7)
    await run.typed()
    await run.worker.begin_evaluation(keep)
    await run.sync(3)
    await run.ask(8)
    await run.ask(9, "validation", True)
    validated = await run.group()
    assert validated.prompt.index == 9 and set(validated.samples[0].versions) == {3}
    await idle()
    assert run.worker.engine.unfinished == 0, "those of training wait"
    await run.worker.end_evaluation()
    groups = [await run.group(), await run.group()]
    assert [group.prompt.index for group in groups] == [7, 8]
    after = 1 if keep else 3
    assert groups[0].samples[0].versions[0] == 1
    assert {group.samples[0].versions[-1] for group in groups} == {after}
    assert all(honest(group) for group in (validated, *groups))
    assert float(run.worker.engine.weights["w"]) == run.worker.engine.version == after
    await run.end()


def test_responses_end_at_tokens_and_at_texts_of_several():
    stops = {"algorithm.sampling_params": {"max_new_tokens": 8, "stop": ["7", "12"]}}
    worker = object.__new__(GenerationWorker)
    worker.cfg = make_cfg({**stops, "actor.tokenizer.tokenizer_model": "characters:0123456789"})
    tokenizer = tokenizer_of_run(worker.cfg)
    wanted = worker._stop_texts(tokenizer)
    # The end token, and that of 7; ids begin at 2.
    assert stops_of(tokenizer, wanted) == ((0, 9), ("12",))


def test_a_text_that_the_tokenizer_does_not_know_ends_nothing():
    worker = object.__new__(GenerationWorker)
    worker.cfg = make_cfg({"actor.tokenizer.tokenizer_model": "words:<unk> x y"})
    with pytest.raises(ValueError, match="'</search>', which the tokenizer does not know"):
        stops_of(tokenizer_of_run(worker.cfg), ["</search>"])
