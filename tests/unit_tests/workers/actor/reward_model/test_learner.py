"""Training of reward models: it tells solved from unsolved, and resumes exactly."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rlinf.config import validate_cfg
from rlinf.data.lerobot.writer import DatasetWriter
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.models import get_model
from rlinf.utils.env_spec import EnvSpec
from rlinf.workers.actor.learner import LearnerPlace
from rlinf.workers.actor.reward_model.learner import RewardModelLearner
from tests.unit_tests.workers.actor.learning import distance, weights
from tests.unit_tests.workers.actor.two_ranks import run_two_ranks

SPEC = EnvSpec(obs_dim=2)
BASE = {
    "cluster": {"component_placement": {"actor": "0"}},
    "runner": {"task_type": "reward_model", "max_steps": 10, "local_update_steps": 50},
    "data": {"train_data_paths": ["d"], "val_fraction": 0.25},
    "actor": {
        "global_batch_size": 32,
        "model": {"model_type": "mlp_reward_model", "hidden_sizes": [16]},
        "optim": {"lr": 1e-2, "weight_decay": 0.0},
    },
}


def seen_at(state):
    """State and picture, in which the column of x is bright."""
    picture = np.zeros((8, 8, 3), np.uint8)
    picture[:, int(np.clip(4 * state[0], 0, 7))] = 255
    return {"observation.state": state, "observation.images.main": picture}


def write_walks(folder, episodes=16, length=20):
    """Walks in the plane, every other one to the right; the task is solved where x is above 1."""
    features = {
        "observation.state": {"dtype": "float32", "shape": (2,)},
        "observation.images.main": {"dtype": "image", "shape": (8, 8, 3)},
        "action": {"dtype": "float32", "shape": (1,)},
        "next.success": {"dtype": "bool", "shape": (1,)},
    }
    rng = np.random.default_rng(0)
    with DatasetWriter.create(folder, 10, features, final_observations=True) as writer:
        for number in range(episodes):
            state = np.zeros(2, np.float32)
            for _ in range(length):
                seen = state
                step = rng.normal([0.15 if number % 2 else -0.05, 0.0], 0.05)
                state = (state + step).astype(np.float32)
                frame = {
                    **seen_at(seen),
                    "action": np.float32([0]),
                    "next.success": bool(state[0] > 1),
                }
                writer.add_frame(frame, task="go right")
            writer.save_episode(seen_at(state))
    return folder


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    return write_walks(tmp_path_factory.mktemp("walks") / "d")


def make_learner(folder, rank=0, world_size=1, spec=SPEC, **actor):
    torch.set_num_threads(1)
    data = copy.deepcopy(BASE)
    data["data"]["train_data_paths"] = [str(folder)]
    data["actor"] |= actor
    cfg = validate_cfg(data)
    torch.manual_seed(0)
    model = get_model(cfg.actor.model, spec, torch.float32)
    place = LearnerPlace(torch.device("cpu"), 3, rank, world_size, total_steps=40)
    return RewardModelLearner(cfg, model, place)


def test_it_comes_to_tell_solved_from_unsolved(walks):
    learner = make_learner(walks)
    before = learner.evaluate()
    for _ in range(4):
        metrics = learner.update()
    after = learner.evaluate()
    assert after["auc"] > 0.99 and after["accuracy"] > 0.95
    assert after["loss"] < 0.5 * before["loss"]
    assert metrics["data/episodes"] == 12 and after["episodes"] == 4
    assert metrics["data/samples"] == 240 and after["samples"] == 80
    points = {"states": torch.tensor([[2.0, 0.0], [0.0, 0.0], [-1.0, 0.5]])}
    assert (learner.engine.infer(observations=points) > 0).tolist() == [True, False, False]


def test_pictures_alone_are_enough(walks):
    section = {
        "model_type": "cnn_reward_model",
        "channels": [8],
        "image_size": 8,
        "feature_dim": 8,
        "hidden_sizes": [16],
        "use_states": False,
    }
    spec = EnvSpec(obs_dim=2, image_shape=(8, 8, 3))
    learner = make_learner(walks, spec=spec, model=section)
    for _ in range(2):
        learner.update()
    assert learner.evaluate()["auc"] > 0.95


def test_micro_batches_change_nothing(walks):
    whole, cut = make_learner(walks), make_learner(walks, micro_batch_size=8)
    whole.update()
    cut.update()
    assert distance(weights(whole), weights(cut)) < 1e-4


def test_a_resumed_training_is_the_uninterrupted_one(walks, tmp_path):
    whole = make_learner(walks)
    whole.update()
    checkpoint = EngineCheckpoint(whole.engine)
    checkpoint.write(checkpoint.snapshot(), tmp_path)
    state = copy.deepcopy(whole.state())
    whole.update()
    resumed = make_learner(walks)
    EngineCheckpoint(resumed.engine).read(tmp_path)
    assert resumed.load_state(state) == []
    resumed.update()
    assert distance(weights(whole), weights(resumed)) == 0.0


def test_rollouts_are_refused(walks):
    with pytest.raises(RuntimeError, match="learns from data.train_data_paths"):
        make_learner(walks).prepare()


class _Ranks:
    """What each of two ranks comes to."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, rank):
        learner = make_learner(self.folder, rank, 2)
        learner.update()
        return learner.evaluate(), weights(learner)


def test_two_ranks_learn_what_one_does(walks, tmp_path):
    alone = make_learner(walks)
    alone.update()
    for scores, own in run_two_ranks(_Ranks(walks), tmp_path):
        assert distance(own, weights(alone)) < 1e-4
        assert scores == pytest.approx(alone.evaluate(), abs=1e-3)
