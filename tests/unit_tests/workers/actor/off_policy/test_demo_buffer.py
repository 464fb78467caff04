"""SAC with demonstrations in each batch: a dataset or a saved buffer, shared by ranks, resumed."""

import numpy as np
import pytest
import torch

from rlinf.data.replay import MixedReplay
from tests.unit_tests.data.demonstrations.datasets import write_dataset
from tests.unit_tests.workers.actor.off_policy.replaying import (
    feed,
    make_off_policy,
    make_sac_cfg,
    replay_rollout,
    weights_of,
)
from tests.unit_tests.workers.actor.off_policy.test_resume import load, save

RLPD = {
    "actor.model.num_q_heads": 4,
    "actor.model.q_layer_norm": True,
    "algorithm.critic_subsample_size": 2,
    "algorithm.backup_entropy": False,
}


def make(path, changes=None, folder=None, **place):
    demos = {"algorithm.demo_buffer": {"load_path": str(path)}}
    cfg = make_sac_cfg({**RLPD, **demos, **(changes or {})})
    return make_off_policy(cfg, folder=folder, **place)


def test_half_of_a_batch_is_demonstrated(tmp_path):
    learner = make(write_dataset(tmp_path / "data", (4, 3)))
    assert isinstance(learner.replay, MixedReplay)
    metrics = feed(learner, replay_rollout(learner.engine.model))
    assert metrics["demo_buffer/num_trajectories"] == 2
    assert metrics["demo_buffer/total_samples"] == 7
    assert metrics["demo_buffer/return"] == 4.5 and metrics["demo_buffer/success_once"] == 1.0
    assert metrics["replay_buffer/total_samples"] == 96
    assert metrics["sac/updates"] == 2 and np.isfinite(metrics["sac/critic_loss"])
    shown = {tuple(row) for row in learner.replay.demos.sample(200).obs["states"].tolist()}
    for batch in learner._draw(3):
        own = [tuple(row) in shown for row in batch.obs["states"].tolist()]
        assert own == [False] * 8 + [True] * 8


def test_statistics_count_what_is_demonstrated(tmp_path):
    path = write_dataset(tmp_path / "data", (40, 30))
    with_demos, without = make(path), make_off_policy(make_sac_cfg(RLPD))
    states = with_demos.replay.demos.float_observations()["states"]
    assert states.shape == (70, 5)
    without.engine.model.update_normalizer({"states": states})
    own, expected = (x.engine.model.normalizer.shift for x in (with_demos, without))
    torch.testing.assert_close(own, expected)


def test_ranks_share_out_the_episodes(tmp_path):
    path = write_dataset(tmp_path / "data", (4, 3, 5))
    cfg = make_sac_cfg({"algorithm.demo_buffer": {"load_path": str(path)}})
    lengths = []
    for rank in range(2):
        learner = make_off_policy(cfg)
        place = learner._replay_place()
        object.__setattr__(place, "rank", rank)
        object.__setattr__(place, "world_size", 2)
        learner._replay_place = lambda place=place: place
        lengths.append(len(learner._make_replay().demos))
    assert lengths == [9, 3]


def test_a_saved_buffer_is_as_good_as_the_dataset_it_came_from(tmp_path):
    first = make(write_dataset(tmp_path / "data", (4, 3)))
    first.replay.demos.save_checkpoint(tmp_path / "saved")
    second = make(tmp_path / "saved")
    batches = [x.replay.demos.sample(50) for x in (first, second)]
    assert torch.equal(batches[0].rewards, batches[1].rewards)
    assert torch.equal(batches[0].next_obs["states"], batches[1].next_obs["states"])


def test_it_goes_on_exactly(tmp_path):
    path = write_dataset(tmp_path / "data", (4, 3))

    def steps(learner, numbers):
        return [feed(learner, replay_rollout(learner.engine.model, seed=n)) for n in numbers]

    first = make(path, folder=tmp_path / "run")
    steps(first, range(3))
    write = save(first, tmp_path / "checkpoint")
    expected = steps(first, range(3, 6))
    write()
    second = make(path, folder=tmp_path / "again")
    assert load(second, tmp_path / "checkpoint") == []
    assert steps(second, range(3, 6)) == expected
    own = weights_of(second)
    assert all(torch.equal(own[key], tensor) for key, tensor in weights_of(first).items())


def test_what_does_not_fit_is_told(tmp_path):
    with pytest.raises(ValueError, match="actions of 3 numbers and the policy of 2"):
        make(write_dataset(tmp_path / "wide", action_dim=3))
    far = make(write_dataset(tmp_path / "far", act=lambda state: state[:2] * 9))
    assert any("outside of the env's range" in text for text in far.said)
    assert len([text for text in far.said if "does not say which reward" in text]) == 1
