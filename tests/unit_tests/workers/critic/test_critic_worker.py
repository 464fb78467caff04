"""A critic in workers of its own computes and learns what one beside the policy does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf.data.token_batch import TokenBatch
from rlinf.scheduler import Channel, FlexiblePlacementStrategy, WaitTimeout
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.reasoning_critic import build_critic
from rlinf.workers.actor.reasoning_learner import ReasoningLearner
from rlinf.workers.critic.critic_worker import ReasoningCriticWorker
from tests.unit_tests.workers.actor.reasoning import (
    CRITIC,
    make_cfg,
    make_groups,
    make_model,
)

CHANGES = {
    **CRITIC,
    "algorithm.shuffle_rollout": False,
    "cluster.component_placement": {"actor,rollout,reward": "0", "critic": "0-1"},
}


class TriedCritic(ReasoningCriticWorker):
    """Tells what it has."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        torch.set_num_threads(1)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.critic.engine.full_tensors()}


def pause() -> None:
    """Let more than a deadline of channels pass, as the responses of a step may."""
    for _ in range(2):
        with pytest.raises(WaitTimeout):
            Channel.create("of nobody").get()


@pytest.mark.timeout(120)
def test_two_ranks_value_and_learn_as_the_learner_does(cluster, tmp_path):
    cluster.run.timeouts["channel"] = 0.3
    cfg = make_cfg(CHANGES)
    in_actor = make_cfg({**CHANGES, "cluster.component_placement": {"actor,rollout,reward": "0"}})
    torch.set_num_threads(1)
    learner = ReasoningLearner(
        in_actor,
        make_model(cfg.actor.model),
        LearnerPlace(torch.device("cpu"), seed=cfg.runner.seed),
        critic=build_critic(in_actor),
    )
    slots = FlexiblePlacementStrategy([[0], [1]])
    group = TriedCritic.create_group(cfg).launch(cluster, slots, name="CriticGroup")
    group.init_worker(10).wait()
    source, target, returns = (Channel.create(name) for name in ("in", "out", "returns"))
    for step in range(2):
        if step == 1:
            folder = str(tmp_path / "saved")
            group.save_checkpoint(folder, background=False).wait()
        groups = make_groups(learner.engine.model, seed=step, version=step)
        valuing = group.run_inference(source, target, 3, step)
        pause()
        for each in groups[:3]:
            source.put(each, key=step)
        assert sorted(valuing.wait()) == [1, 2]
        valued = {g.prompt.index: g for g in (target.get(key=step) for _ in range(3))}
        for each in groups[:3]:
            expected = learner.critic.values(TokenBatch.of([each]))
            found = [x for s in valued[each.prompt.index].samples for x in s.values]
            torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-5)

        learner.prepare(groups)
        samples = learner.for_critic()
        halves = torch.arange(16).view(2, 8)
        training = group.run_training(returns, 2, step)
        pause()
        # Shares of two actor ranks, which may come in any order.
        for half in halves.flip(0):
            returns.put(samples.select(half), key=step)
        metrics = training.wait()[0]
        expected = learner.critic.update(samples)
        assert metrics["critic/updates"] == 1
        assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-5)
        learner._samples = None
    moved = group.weights().wait()[0]
    assert group.load_checkpoint(folder).wait() == [[], []]
    saved = group.weights().wait()[0]
    assert any(not torch.equal(saved[name], moved[name]) for name in saved)
    # The same batch once more, from the checkpoint.
    training = group.run_training(returns, 2, 7)
    for half in halves:
        returns.put(samples.select(half), key=7)
    training.wait()
    again = group.weights().wait()[0]
    assert all(torch.equal(again[name], moved[name]) for name in again)
