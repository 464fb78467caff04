"""Workers that ask the policy, or the reference, get the numbers that the actor would."""

from __future__ import annotations

import pytest
import torch

from rlinf.data.token_batch import TokenBatch
from rlinf.scheduler import Channel, wait_all
from rlinf.workers.actor.reasoning_samples import recompute
from rlinf.workers.inference.reasoning_inference import ReasoningInference
from tests.unit_tests.workers.actor.reasoning import make_cfg, make_groups, make_learner
from tests.unit_tests.workers.actor.test_reasoning_actor import TriedActor, slots


class Asked(TriedActor):
    """Says what the actor itself makes of some groups."""

    def logprobs(self, groups, use_adapters):
        batch = TokenBatch.of(groups)
        learner = self.learner
        keys = {"temperature": learner._loss.temperature, "use_adapters": use_adapters}
        return recompute(self.engine, batch, learner._inference, **keys)


def give(groups, source, workers, target, step):
    """Lets groups pass through some workers; returns them in the order of their prompts."""
    passing = workers.run_inference(source, target, len(groups), step)
    for group in groups:
        source.put(group, key=step)
    passing.wait()
    found = [target.get(key=step) for _ in groups]
    return sorted(found, key=lambda group: group.prompt.index)


def flat(groups, name):
    return torch.tensor([x for g in groups for s in g.samples for x in getattr(s, name)])


@pytest.mark.timeout(120)
def test_adapters_reach_those_who_ask_the_policy_and_not_the_reference(cluster, tmp_path):
    base = make_learner(make_cfg()).engine.model
    base.save_folder(tmp_path / "base", dict(base.policy_tensors(lambda tensor: tensor)))
    section = {"model_type": "qwen3", "model_path": str(tmp_path / "base"), "is_lora": True}
    place = {"actor,rollout,reward,reference": "0", "inference": "0-1"}
    cfg = make_cfg(
        {
            "actor.model": {**section, "lora_rank": 4},
            "weight_syncer.lora": "adapters",
            "algorithm.kl_beta": 0.1,
            "cluster.component_placement": place,
        }
    )
    actor = Asked.create_group(cfg).launch(cluster, slots(1), name="ActorGroup")
    inference = ReasoningInference.create_group(cfg).launch(
        cluster, slots(2), name="InferenceGroup"
    )
    reference = ReasoningInference.create_group(cfg, "reference").launch(
        cluster, slots(1), name="ReferenceGroup"
    )
    wait_all(actor.init_worker(10), inference.init_worker(), reference.init_worker())
    # Adapters that have learnt something before reinforcement begins.
    actor.run_supervised([([1, 2], [3])] * cfg.actor.supervised.batch_size).wait()
    received = reference.sync_model_from_actor()
    wait_all(received, actor.sync_model_to_reference())

    rewarded, inferred, referred = (Channel.create(name) for name in ("a", "b", "c"))
    for step in range(2):
        received = inference.sync_model_from_actor()
        wait_all(received, actor.sync_model_to_inference())
        assert received.wait() == [step + 1] * 2
        groups = make_groups(base, seed=step, version=step + 1)
        own, plain = (actor.logprobs(groups, use).wait()[0] for use in (True, False))
        groups = give(groups, rewarded, inference, inferred, step)
        groups = give(groups, rewarded, reference, referred, step + 10)
        torch.testing.assert_close(flat(groups, "old_logprobs"), own, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(flat(groups, "ref_logprobs"), plain, rtol=1e-4, atol=1e-5)
        assert (own - plain).abs().max() > 1e-3
        learning = actor.run_training(referred, key=step)
        for group in groups:
            referred.put(group, key=step)
        learning.wait()

    folder = tmp_path / "saved"
    reference.save_checkpoint(str(folder), background=False).wait()
    # A worker that was built anew goes on from it.
    reference.init_worker().wait()
    assert reference.load_checkpoint(str(folder)).wait() == [[]]
    again = give(make_groups(base, seed=1), rewarded, reference, referred, 20)
    assert torch.equal(flat(again, "ref_logprobs"), flat(groups, "ref_logprobs"))
    with pytest.raises(ValueError, match="take reference out of cluster.component_placement"):
        reference.load_checkpoint(str(tmp_path)).wait()
