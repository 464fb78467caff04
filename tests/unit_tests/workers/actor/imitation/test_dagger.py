"""DAgger: labels of all rollouts are cloned, those of others are not, and it resumes exactly."""

from dataclasses import replace

import pytest
import torch

from rlinf.config import ConfigError
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.utils.checkpoint import load_tree, save_tree
from rlinf.workers.actor.imitation.dagger_learner import DAggerLearner
from tests.unit_tests.workers.actor.learning import columns, distance, make_cfg, weights
from tests.unit_tests.workers.actor.off_policy.replaying import (
    feed,
    make_off_policy,
    replay_rollout,
)
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

DAGGER = {
    "algorithm": {
        "adv_type": "embodied_sac",
        "loss_type": "embodied_dagger",
        "update_epoch": 3,
        "dagger": {"init_beta": 0.8, "beta_decay": 0.5, "beta_min": 0.1},
        "replay_buffer": {"cache_size": 1000},
    },
    "actor.global_batch_size": 16,
    "actor.model": {"model_type": "mlp_policy", "hidden_sizes": [16]},
}


def make_dagger_cfg(changes=None):
    return make_cfg({**DAGGER, **(changes or {})})


def make(changes=None, **place):
    learner = make_off_policy(make_dagger_cfg(changes), **place)
    assert type(learner) is DAggerLearner
    return learner


def labelled(policy, seed=0, share=0.5):
    """A rollout whose labels follow from the states, and whose actions do not."""
    batch = replay_rollout(policy, seed=seed)
    states = batch.forward_inputs["states"]
    labels = torch.stack([states[..., 0], -states[..., 1]], -1).tanh()[:, :, None]
    g = torch.Generator().manual_seed(seed + 50)
    by_expert = torch.rand(batch.rewards.shape, generator=g) < share
    actions = torch.where(by_expert[..., None], labels, batch.actions)
    return replace(batch, labels=labels, actions=actions, intervened=by_expert)


def error(learner, batch):
    """How far the policy is from the labels of a rollout."""
    obs = {"states": batch.forward_inputs["states"].flatten(0, 1)}
    own, _ = learner.engine.model.predict_action_batch(obs, mode="eval")
    return float((own - batch.labels.flatten(0, 1)).abs().mean())


def test_the_policy_comes_to_do_what_the_expert_would():
    learner = make({"algorithm.update_epoch": 150})
    policy, held_out = learner.engine.model, labelled(learner.engine.model, 99)
    before = error(learner, held_out)
    for seed in range(4):
        metrics = feed(learner, labelled(policy, seed, share=0.0))
    assert error(learner, held_out) < 0.4 * before
    # The last step of an env has nothing behind it yet, and is a label all the same.
    assert metrics["dagger/labels"] == 4 * 12 * 8
    assert metrics["gradient_updates"] == 600 and metrics["dagger/beta"] == pytest.approx(0.1)


def test_only_interventions_are_learned_from():
    learner = make({"algorithm.dagger.only_save_expert": True})
    batch = labelled(learner.engine.model)
    wrong = replace(batch, labels=torch.where(batch.intervened[..., None], batch.labels, 0.9))
    metrics = feed(learner, wrong)
    assert metrics["dagger/labels"] == int(batch.intervened.sum())
    assert metrics["intervened"] == pytest.approx(float(batch.intervened.float().mean()))
    drawn = learner.replay.sample(500)
    states = drawn.obs["states"]
    expected = torch.stack([states[:, 0], -states[:, 1]], -1).tanh()[:, None]
    torch.testing.assert_close(drawn.actions, expected)


def test_without_an_expert_the_envs_own_interventions_are_the_labels():
    changes = {"algorithm.dagger.expert": None, "algorithm.dagger.only_save_expert": True}
    learner = make(changes)
    batch = replace(labelled(learner.engine.model), labels=None)
    feed(learner, batch)
    drawn = learner.replay.sample(200)
    states = drawn.obs["states"]
    expected = torch.stack([states[:, 0], -states[:, 1]], -1).tanh()[:, None]
    torch.testing.assert_close(drawn.actions, expected)


def test_without_labels_nothing_is_learned():
    learner = make({"algorithm.dagger.only_save_expert": True})
    before = weights(learner)
    metrics = feed(learner, labelled(learner.engine.model, share=0.0))
    assert metrics["actor/updates"] == 0 and metrics["dagger/labels"] == 0
    assert distance(weights(learner), before) == 0.0 and learner.version == 1


def test_the_policy_does_not_sample():
    needs = DAggerLearner.rollout_needs(make_dagger_cfg())
    assert not needs.samples and needs.final_observations


def test_it_goes_on_exactly(tmp_path):
    first = make(folder=tmp_path / "run")
    policy = first.engine.model
    for seed in range(3):
        feed(first, labelled(policy, seed))
    checkpoint = EngineCheckpoint(first.engine)
    write = first.snapshot_files(tmp_path / "saved")
    checkpoint.write(checkpoint.snapshot(), tmp_path / "saved" / "tensors")
    save_tree(tmp_path / "saved" / "state", first.state())
    expected = [feed(first, labelled(policy, seed)) for seed in range(3, 5)]
    write()
    first.close()
    second = make(folder=tmp_path / "again")
    EngineCheckpoint(second.engine).read(tmp_path / "saved" / "tensors")
    assert second.load_state(load_tree(tmp_path / "saved" / "state")) == []
    assert second.load_files(tmp_path / "saved") == []
    assert [feed(second, labelled(policy, seed)) for seed in range(3, 5)] == expected
    assert distance(weights(second), weights(first)) == 0.0


def train(rank=0, world_size=1):
    learner = make(rank=rank, world_size=world_size)
    policy = make().engine.model
    alone = make()
    seen = []
    for seed in range(3):
        batch = labelled(policy, seed)
        alone.prepare(batch, range(8))
        drawn = alone.replay.sample(48)
        # Rank r has the r-th part of each batch of 16.
        share = 16 // world_size
        own = torch.arange(48).view(3, 16)[:, rank * share : (rank + 1) * share].flatten()
        learner.replay.sample = lambda count, part=(drawn, own): _Part(*part)
        envs = range(rank * 8 // world_size, (rank + 1) * 8 // world_size)
        final, batch.final = batch.final, None
        part = columns(batch, list(envs))
        part.final = final.split([envs.start, len(envs), 8 - envs.stop])[1]
        learner.prepare(part, list(envs))
        seen.append(learner.update())
    return seen, weights(learner)


class _Part:
    """Some rows of what was drawn."""

    def __init__(self, batch, rows):
        self.obs = {name: value[rows] for name, value in batch.obs.items()}
        self.actions, self.valid, self.indices = (
            value[rows] for value in (batch.actions, batch.valid, batch.indices)
        )

    def to(self, device):
        return self


def run_rank(rank):
    return train(rank, 2)


def test_two_ranks_do_what_one_does(tmp_path):
    seen, own = train()
    for rank_seen, rank_weights in run_two_ranks(run_rank, tmp_path):
        assert distance(rank_weights, own) < 1e-5
        for ours, theirs in zip(seen, rank_seen, strict=True):
            keys = [k for k in ours if not k.startswith("replay_buffer/")]
            assert {k: theirs[k] for k in keys} == pytest.approx(
                {k: ours[k] for k in keys}, rel=1e-3, abs=1e-5
            )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"actor.model.num_action_chunks": 2}, "actor.model.num_action_chunks"),
        ({"algorithm.dagger.expert": None}, "algorithm.dagger.only_save_expert"),
        (
            {"algorithm.dagger": {"expert": None, "only_save_expert": True, "gate": "deviation"}},
            "algorithm.dagger.gate",
        ),
        ({"algorithm.dagger.gate_release": 0.9}, "algorithm.dagger.gate_release"),
        ({"algorithm.adv_type": "gae"}, "algorithm.adv_type"),
        ({"actor.global_batch_size": None}, "actor.global_batch_size"),
        ({"algorithm.tau": 0.1}, "algorithm.tau"),
    ],
)
def test_a_config_without_labels_is_refused(changes, said):
    with pytest.raises(ConfigError) as caught:
        make_dagger_cfg(changes)
    assert said in str(caught.value)
