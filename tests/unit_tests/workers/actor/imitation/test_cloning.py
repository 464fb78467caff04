"""Behaviour cloning: it does what was done, alike on any number of ranks, and resumes exactly."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rlinf.config import ConfigError, validate_cfg
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.imitation.cloning_learner import BehaviourCloningLearner
from rlinf.workers.actor.learner import LearnerPlace
from tests.unit_tests.data.demonstrations.datasets import write_dataset
from tests.unit_tests.workers.actor.learning import distance, weights
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

SPEC = EnvSpec(obs_dim=5, action_dim=2, action_low=[-1, -1], action_high=[1, 1])
CHOICES = EnvSpec(obs_dim=5, action_dim=2, action_choices=(3, 2))
BASE = {
    "cluster": {"component_placement": {"actor,rollout,env": "0"}},
    "runner": {"task_type": "offline", "max_steps": 10, "local_update_steps": 4},
    "algorithm": {"loss_type": "embodied_bc"},
    "data": {"train_data_paths": ["demos"]},
    "env": {"eval": {"env_type": "metaworld", "total_num_envs": 2}},
    "rollout": {},
    "actor": {
        "global_batch_size": 8,
        "model": {"model_type": "mlp_policy", "hidden_sizes": [16]},
        "optim": {"lr": 1e-2, "weight_decay": 0.0, "lr_scheduler": "cosine"},
    },
}


def make_cfg(folder, changes=None):
    data = copy.deepcopy(BASE)
    data["data"]["train_data_paths"] = [str(folder)]
    for path, value in (changes or {}).items():
        *parents, key = path.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = copy.deepcopy(value)
    return validate_cfg(data)


def make_learner(
    folder,
    changes=None,
    spec=SPEC,
    rank=0,
    world_size=1,
    deferred=None,
    kind=BehaviourCloningLearner,
):
    """A learner, its policy built as the worker builds it unless `deferred` says how."""
    torch.set_num_threads(1)
    cfg = make_cfg(folder, changes)
    torch.manual_seed(0)
    if deferred is None:
        deferred = BehaviourCloningLearner.defers_weights
    policy = get_model(cfg.actor.model, spec, torch.float32, deferred=deferred)
    said = []
    place = LearnerPlace(torch.device("cpu"), 3, rank, world_size, total_steps=40, warn=said.append)
    learner = kind(cfg, policy, place)
    learner.said = said
    return learner


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Episodes of several lengths, whose actions follow from the states and exceed the bounds."""

    def act(state):
        return np.clip([1.5 * state[0], 0.5 * state[1] - 0.3 * state[2]], -1, 1)

    return write_dataset(tmp_path_factory.mktemp("demos") / "d", (5, 9, 12, 7, 20), act=act)


@pytest.mark.parametrize("loss", ["mse", "nll"])
@pytest.mark.parametrize("distribution", ["gaussian", "squashed_gaussian"])
def test_the_policy_comes_to_do_what_was_done(demos, loss, distribution):
    changes = {
        "algorithm.bc_loss": loss,
        "actor.model.distribution": distribution,
        "actor.optim.lr_scheduler": "constant",
        "runner.local_update_steps": 100,
    }
    learner = make_learner(demos, changes)
    first, last = learner.update(), [learner.update() for _ in range(5)][-1]
    assert last["actor/action_error"] < 0.7 * first["actor/action_error"]
    assert last["actor/loss"] < first["actor/loss"]
    policy = learner.engine.model
    obs = learner.demos.obs
    own, _ = policy.predict_action_batch(obs, mode="eval")
    assert float((own[:, 0] - learner.demos.actions).abs().mean()) < 0.15


def test_choices_are_cloned(tmp_path):
    def act(state):
        return np.array([int(state[0] > 0) + int(state[0] > 1), int(state[1] > 0)])

    folder = write_dataset(tmp_path / "d", (20, 30), act=act, choices=True)
    changes = {"runner.local_update_steps": 150, "actor.optim.lr_scheduler": "constant"}
    learner = make_learner(folder, changes, CHOICES)
    learner.update()
    metrics = learner.update()
    assert metrics["actor/action_error"] < 0.05 and metrics["actor/loss"] > 0


def test_a_chunk_is_learned_as_far_as_the_episode_goes(demos):
    changes = {"actor.model.num_action_chunks": 4, "actor.global_batch_size": 53}
    learner = make_learner(demos, {**changes, "runner.local_update_steps": 1})
    # Of five episodes, the last three chunks have 3, 2 and 1 actions.
    task_mask = learner._samples.valid(torch.arange(53))
    assert int(task_mask.sum()) == 53 * 4 - 5 * (1 + 2 + 3)
    assert learner.update()["actor/updates"] == 1


def test_observations_are_normalised_by_the_data(demos):
    learner = make_learner(demos)
    states = learner.demos.obs["states"]
    normalizer = learner.engine.model.normalizer
    torch.testing.assert_close(normalizer.shift, states.mean(0), rtol=1e-4, atol=1e-5)
    before = normalizer.shift.clone()
    learner.update()
    assert torch.equal(learner.engine.model.normalizer.shift, before)


def test_weights_to_begin_with_bring_their_own_statistics(demos, tmp_path):
    from safetensors.torch import save_file

    other = make_learner(write_dataset(tmp_path / "o", seed=9))
    save_file(dict(other.engine.model.state_dict()), tmp_path / "w.safetensors")
    from rlinf.hybrid_engines.initial_weights import load_initial_weights

    cfg = make_cfg(demos, {"runner.ckpt_path": str(tmp_path / "w.safetensors")})
    policy = get_model(cfg.actor.model, SPEC, torch.float32)
    load_initial_weights(policy, cfg)
    place = LearnerPlace(torch.device("cpu"))
    learner = BehaviourCloningLearner(cfg, policy, place)
    assert distance(weights(learner), weights(other)) == 0.0
    assert torch.equal(learner.engine.model.normalizer.shift, other.engine.model.normalizer.shift)


def train(folder, changes, rank=0, world_size=1):
    learner = make_learner(folder, changes, rank=rank, world_size=world_size)
    seen = [learner.update() for _ in range(3)]
    return seen, weights(learner)


CHUNKS = {"actor.model.num_action_chunks": 3, "actor.micro_batch_size": 2}


class _Ranks:
    def __init__(self, folder):
        self.folder = folder

    def __call__(self, rank):
        return [train(self.folder, changes, rank, 2) for changes in ({}, CHUNKS)]


def test_two_ranks_do_what_one_does(demos, tmp_path):
    ranks = run_two_ranks(_Ranks(demos), tmp_path)
    for index, changes in enumerate(({}, CHUNKS)):
        seen, own = train(demos, changes)
        for rank in ranks:
            assert distance(rank[index][1], own) < 1e-5
            for ours, theirs in zip(seen, rank[index][0], strict=True):
                assert ours.keys() == theirs.keys()
                assert all(theirs[k] == pytest.approx(ours[k], rel=1e-4, abs=1e-6) for k in ours)


def test_resumed_is_as_if_nothing_had_happened(demos, tmp_path):
    whole = make_learner(demos)
    metrics = [whole.update() for _ in range(4)]
    first = make_learner(demos)
    first.update(), first.update()
    checkpoint = EngineCheckpoint(first.engine)
    checkpoint.write(checkpoint.snapshot(), tmp_path / "tensors")
    state = first.state()
    second = make_learner(demos)
    EngineCheckpoint(second.engine).read(tmp_path / "tensors")
    assert second.load_state(state) == []
    assert [second.update(), second.update()] == metrics[2:]
    assert distance(weights(second), weights(whole)) == 0.0


def test_pictures_that_the_policy_does_not_look_at_are_not_read(tmp_path):
    learner = make_learner(write_dataset(tmp_path / "d", (4, 6), pictures=True))
    assert list(learner.demos.obs) == ["states"]


def test_data_of_another_env_are_refused(demos, tmp_path):
    three = write_dataset(tmp_path / "three", action_dim=3)
    with pytest.raises(ValueError, match="actions of 3 numbers and the policy of 2"):
        make_learner(three)
    with pytest.raises(ValueError, match=r"are real numbers, and those of the env .* are choices"):
        make_learner(demos, spec=CHOICES)
    wrong = write_dataset(
        tmp_path / "wrong", choices=True, act=lambda state: np.array([3, 1]), lengths=(9,)
    )
    with pytest.raises(
        ValueError, match=r"are \[3, 1\] to \[3, 1\], .* takes \[0, 0\] to \[2, 1\]"
    ):
        make_learner(wrong, spec=CHOICES)
    wide = write_dataset(tmp_path / "wide", act=lambda state: np.array([5.0, 0.0]), lengths=(9,))
    assert "100% of the actions" in make_learner(wide).said[0]


def test_rollouts_are_refused(demos):
    with pytest.raises(RuntimeError, match="set runner.task_type to offline"):
        make_learner(demos).prepare(None, [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env.eval": None}, "env.eval"),
        ({"algorithm.loss_type": "actor_critic"}, "learns from rollouts"),
        ({"actor.global_batch_size": None}, "actor.global_batch_size"),
        ({"actor.micro_batch_size": 3}, "micro_batch_size 3"),
        ({"runner.max_epochs": 3}, "as long as runner.max_steps"),
        ({"runner.max_steps": -1}, "nothing else ends a run"),
        ({"data.train_data_paths": []}, "data.train_data_paths"),
        ({"algorithm.gae_lambda": 0.5}, "algorithm.gae_lambda"),
    ],
)
def test_a_config_that_cannot_learn_from_data_is_refused(changes, said):
    with pytest.raises(ConfigError) as caught:
        make_cfg("demos", changes)
    assert said in str(caught.value)
