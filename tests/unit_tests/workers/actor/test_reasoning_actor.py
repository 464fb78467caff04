"""The actor of language models as a worker: groups come by channel, weights go to a rollout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf.hybrid_engines.weight_sync import packing, sender
from rlinf.hybrid_engines.weight_sync.receiver import WeightReceiver
from rlinf.models import get_model
from rlinf.models.lora import AdapterStore
from rlinf.scheduler import Channel, FlexiblePlacementStrategy, Worker, wait_all
from rlinf.workers.actor.reasoning_actor import ReasoningActor
from tests.unit_tests.workers.actor.reasoning import (
    MODEL,
    make_cfg,
    make_groups,
    make_learner,
    weights,
)


class Receiver(Worker):
    """Stands for a rollout worker: a plain model of transformers that takes new weights."""

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        self.cfg = cfg
        folder = cfg.actor.model.model_path
        section = MODEL if folder is None else {"model_type": "qwen3", "model_path": folder}
        torch.manual_seed(11)
        self.model = get_model(section)
        self.receiver = WeightReceiver(self, cfg)
        self.store = None
        if cfg.weight_syncer.lora == "adapters":
            self.store = AdapterStore(self.model.plain, cfg.actor.model)

    def sync_model_from_actor(self) -> int:
        target = self.model.plain if self.store is None else self.store
        version = self.receiver.receive(target)
        if self.store is not None:
            self.store.merge()
        return version

    def collected(self) -> tuple[dict[str, torch.Tensor], int]:
        return self.receiver.collect()

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: t.clone() for name, t in self.model.plain.state_dict().items()}


class TriedActor(ReasoningActor):
    """Tells what it has."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        torch.set_num_threads(1)

    def weights(self) -> dict[str, torch.Tensor]:
        return weights(self.learner)

    def merged(self) -> dict[str, torch.Tensor]:
        return {n: t.clone() for n, t in self.policy.policy_tensors(lambda tensor: tensor)}


class PackingActor(TriedActor):
    """Sends from buffers that stay, as from a GPU; the device is the CPU."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        sender.on_gpu = lambda bucket: True

    def change(self) -> None:
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.add_(0.25)

    def miscount(self) -> None:
        """From now on the checksum of the second tensor of each bucket is wrong."""
        right = packing.Layout.checksums

        def wrong(layout: Any, flat: Any) -> tuple[int, ...]:
            first, second, *others = right(layout, flat)
            return (first, second + 1, *others)

        packing.Layout.checksums = wrong

    def staged(self) -> list[int]:
        staging = self._senders["rollout"]._staging
        places = [slot.buffer.flat.data_ptr() for slot in staging._slots]
        return [staging.nbytes, *places]


def slots(count):
    return FlexiblePlacementStrategy([[i] for i in range(count)])


def launch(cluster, cfg, ranks=1):
    actor = TriedActor.create_group(cfg).launch(cluster, slots(ranks), name="ActorGroup")
    rollout = Receiver.create_group(cfg).launch(cluster, slots(1), name="RolloutGroup")
    actor.init_worker(10).wait()
    return actor, rollout


def sync(actor, rollout):
    received, sent = rollout.sync_model_from_actor(), actor.sync_model_to_rollout()
    wait_all(received, sent)
    return received.wait()[0], sum(sent.wait())


def test_a_step_by_channel_on_two_ranks(cluster, tmp_path):
    """Groups that come one by one, in any order, make the update of the learner alone."""
    cfg = make_cfg(
        {
            "actor.enable_offload": True,
            "cluster.component_placement": {"actor": "0-1", "rollout,reward": "0"},
        }
    )
    actor, rollout = launch(cluster, cfg, ranks=2)
    version, size = sync(actor, rollout)
    before = rollout.tensors().wait()[0]
    assert version == 0 and size == sum(
        t.nbytes for name, t in before.items() if name != "lm_head.weight"
    )
    channel = Channel.create("groups")
    policy = get_model(MODEL)
    policy.plain.load_state_dict(before)
    groups = make_groups(policy)
    learning = actor.run_training(channel)
    for group in groups[::-1]:
        channel.put(group)
    of_batch, of_update = learning.wait()[0]
    assert of_batch["rewards"] == pytest.approx(
        sum(s.reward for g in groups for s in g.samples) / 16
    )
    assert of_update["actor/rollout_gap_max"] < 1e-4 and of_update["actor/updates"] == 1

    assert sync(actor, rollout)[0] == 1
    own, other = actor.weights().wait()[0], rollout.tensors().wait()[0]
    for name, tensor in other.items():
        assert torch.equal(tensor, own[f"lm.{name}"]), name
    assert any(not torch.equal(tensor, before[name]) for name, tensor in other.items())

    # The same in three calls, from a checkpoint, on as many ranks.
    actor.save_checkpoint(str(tmp_path / "saved"), background=False).wait()
    channel.put_batch(groups[:2])
    channel.put_batch(groups[2:])
    assert sum(actor.recv_rollout_batch(channel).wait()) == 16
    actor.compute_advantages_and_returns().wait()
    actor.run_training().wait()
    expected = actor.weights().wait()[0]
    assert actor.load_checkpoint(str(tmp_path / "saved")).wait() == [[], []]
    assert torch.equal(
        actor.weights().wait()[0]["lm.model.norm.weight"], own["lm.model.norm.weight"]
    )
    channel.put(list(groups[:2]))
    channel.put(list(groups[2:]))
    actor.run_training(channel).wait()
    again = actor.weights().wait()[0]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.items())

    actor.save_model(str(tmp_path / "model")).wait()
    saved = get_model({"model_type": "qwen3", "model_path": str(tmp_path / "model")})
    for name, tensor in saved.plain.state_dict().items():
        assert torch.equal(tensor, again[f"lm.{name}"]), name


def test_weights_leave_from_buffers_that_stay(cluster):
    """Six buckets through two buffers to two receivers, version by version."""
    bucket = {"bucket_size": 6000, "bucket_dtype": "bf16"}
    cfg = make_cfg({"weight_syncer.bucket": bucket})
    actor = PackingActor.create_group(cfg).launch(cluster, slots(1), name="ActorGroup")
    rollout = Receiver.create_group(cfg).launch(cluster, slots(2), name="RolloutGroup")
    actor.init_worker(10).wait()
    kept = []
    for _ in range(3):
        actor.change().wait()
        version, size = sync(actor, rollout)
        own = actor.weights().wait()[0]
        for received in rollout.tensors().wait():
            for name, tensor in received.items():
                assert torch.equal(tensor, own[f"lm.{name}"].bfloat16().float()), name
        kept.append(tuple(actor.staged().wait()[0]))
        assert version == 0 and size == sum(
            2 * t.numel() for name, t in received.items() if name != "lm_head.weight"
        )
    assert len(set(kept)) == 1, "the same memory each time"

    # Whoever loads them elsewhere has them for itself.
    collecting = rollout.collected()
    wait_all(actor.sync_model_to_rollout(), collecting)
    found = collecting.wait()[0][0]
    actor.change().wait()
    sync(actor, rollout)
    assert all(
        torch.equal(found[name].float(), tensor)
        for name, tensor in received.items()
        if name in found
    )

    actor.miscount().wait()
    with pytest.raises(Exception, match="'model.layers.*' arrived changed"):
        sync(actor, rollout)


@pytest.mark.slow
def test_adapters_alone_reach_a_rollout_that_streams(cluster, tmp_path):
    base = make_learner(make_cfg()).engine.model
    base.save_folder(tmp_path, dict(base.policy_tensors(lambda tensor: tensor)))
    section = {"model_type": "qwen3", "model_path": str(tmp_path), "is_lora": True, "lora_rank": 4}
    changes = {"actor.model": section, "weight_syncer.lora": "adapters", "actor.stream_groups": 1}
    cfg = make_cfg(changes)
    actor, rollout = launch(cluster, cfg)
    examples = [([1, 2], [3])] * cfg.actor.supervised.batch_size
    assert actor.run_supervised(examples).wait()[0]["actor/updates"] == 1
    channel = Channel.create("groups")
    learning = actor.run_training(channel)
    channel.put_batch(make_groups(base, version=1))
    of_batch, of_update = learning.wait()[0]
    assert of_update["actor/updates"] == 1 and of_batch["response_length"] > 0
    version, size = sync(actor, rollout)
    merged, own = actor.merged().wait()[0], rollout.tensors().wait()[0]
    assert version == 2 and size < sum(t.nbytes for t in merged.values()) / 2
    start = base.plain.state_dict()
    for name, tensor in merged.items():
        assert torch.equal(tensor, own[name]), name
        assert torch.equal(tensor, start[name]) != ("proj" in name), name
