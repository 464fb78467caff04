"""The rollout worker with an engine elsewhere: what the actor trains reaches the server."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlinf.data.reasoning import GroupRequest, Prompt
from rlinf.scheduler import Channel, wait_all
from rlinf.workers.rollout.generation_worker import GenerationWorker
from tests.unit_tests.hybrid_engines.generation.remote.serving import SmallServer
from tests.unit_tests.hybrid_engines.generation.tiny import logprobs
from tests.unit_tests.workers.actor.reasoning import make_cfg, make_groups, make_learner
from tests.unit_tests.workers.actor.test_reasoning_actor import TriedActor, slots


@pytest.mark.timeout(240)
@pytest.mark.parametrize("backend", ["vllm_server", "sglang_server"])
def test_what_is_trained_is_what_the_server_generates_with(cluster, tmp_path, backend):
    base = make_learner(make_cfg()).engine.model
    base.save_folder(tmp_path / "model", dict(base.policy_tensors(lambda tensor: tensor)))
    with SmallServer(str(tmp_path / "model")) as server:
        cfg = make_cfg(
            {
                "actor.model": {"model_type": "qwen3", "model_path": str(tmp_path / "model")},
                "actor.tokenizer.tokenizer_model": "characters:0123456789",
                "rollout.rollout_backend": backend,
                "rollout.server.url": server.url,
                "rollout.server.weights_folder": str(tmp_path / "weights"),
            }
        )
        actor = TriedActor.create_group(cfg).launch(cluster, slots(1), name="ActorGroup")
        rollout = GenerationWorker.create_group(cfg).launch(cluster, slots(1), name="RolloutGroup")
        wait_all(actor.init_worker(10), rollout.init_worker())
        channel = Channel.create("groups")
        for step in range(2):
            wait_all(rollout.sync_model_from_actor(), actor.sync_model_to_rollout())
            own = {
                name: tensor.clone() for name, tensor in server.engine.model.state_dict().items()
            }
            for name, tensor in actor.merged().wait()[0].items():
                assert torch.equal(tensor, own[name]), name
            learning = actor.run_training(channel)
            channel.put_batch(make_groups(base, seed=step, version=step))
            learning.wait()

        asked, made = Channel.create("asked"), Channel.create("made")
        serving = rollout.rollout(asked, made)
        asked.put([GroupRequest(Prompt(0, [3, 4, 5], "", None, "", {}), 4, key=0)], key=0)
        group = made.get()
        asked.close()
        serving.wait()
        temperature = cfg.algorithm.sampling_params.temperature
        for sample in group.samples:
            assert sample.versions == [1] * len(sample.response_ids)
            exact = logprobs(server.engine.model, [3, 4, 5], sample.response_ids, temperature)
            np.testing.assert_allclose(sample.logprobs, exact, atol=1e-4)
