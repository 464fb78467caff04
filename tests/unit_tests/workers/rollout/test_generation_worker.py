"""The rollout worker of language models: what it generates with is what the actor has."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from rlinf.data.reasoning import GroupRequest, Prompt
from rlinf.hybrid_engines.generation import GenerationRequest, GenerationResult
from rlinf.scheduler import Channel, ChannelClosed, wait_all
from rlinf.workers.rollout.generation_worker import GenerationWorker
from tests.unit_tests.workers.actor.reasoning import make_cfg, make_groups, make_learner
from tests.unit_tests.workers.actor.test_reasoning_actor import TriedActor, slots


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

    async def get(self, key: int, async_op: bool) -> Any:
        item = await self._items.get()
        if item is None:
            raise ChannelClosed("requests")
        return item


class Untied(GenerationWorker):
    """Lives in this process, with an engine that is given."""

    def __new__(cls, *args: Any) -> Untied:
        return object.__new__(cls)

    def __init__(self, engine: Idler) -> None:
        self._rank, self._groups, self._came = 0, {}, asyncio.Event()
        self._notes = self._asleep = False
        self.engine = engine

    def worker_timer(self, tag: str | None = None) -> Any:
        return nullcontext()

    def _submit(self, request: GroupRequest) -> None:
        from rlinf.workers.rollout.generation_worker import _Group

        name = (request.key, request.prompt.index)
        work = GenerationRequest(name, request.prompt.token_ids, n=request.group_size)
        self._groups[name] = _Group(request, work)
        self.engine.submit([work])

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
    assert not worker._groups
    if not closed:
        assert not serving.done()
        await requests.put(None, True)
    await asyncio.wait_for(serving, DEADLINE)
