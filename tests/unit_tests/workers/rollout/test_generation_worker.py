"""The rollout worker of language models: what it generates with is what the actor has."""

from __future__ import annotations

import pytest
import torch

from rlinf.scheduler import Channel, wait_all
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
