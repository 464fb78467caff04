"""A trained policy that labels what another one observes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf.config import to_plain
from rlinf.envs import ActionSpec
from rlinf.hybrid_engines.export import export_checkpoint
from rlinf.hybrid_engines.fsdp.checkpoint import EngineCheckpoint
from rlinf.utils.checkpoint import CheckpointStore, save_tree
from rlinf.workers.env.policy_expert import PolicyExpert, make_env_expert
from tests.unit_tests.workers.actor.learning import SPEC, make_cfg, make_learner


def make_env(obs_dim=5, envs=3):
    actions = ActionSpec.box(SPEC.action_low, SPEC.action_high)
    return SimpleNamespace(
        cfg={"env_type": "walk"},
        num_envs=envs,
        action_spec=actions,
        policy_spec=actions,
        instructions=[],
        obs_spec={"states": SimpleNamespace(shape=(obs_dim,))},
        max_episode_steps=50,
        task_names=["walk"],
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder with one checkpoint, and the policy in it."""
    cfg = make_cfg({"actor.model.num_action_chunks": 2})
    learner = make_learner(cfg)
    folder = tmp_path_factory.mktemp("teacher")
    store = CheckpointStore(folder / "checkpoints")
    part, tensors = store.begin(4), EngineCheckpoint(learner.engine)
    tensors.write(tensors.snapshot(), part / "actor" / "tensors")
    save_tree(part / "actor" / "env_spec", vars(SPEC))
    store.commit(4, {"versions": {"rlinf": "0"}, "config": to_plain(cfg)})
    return folder, learner.engine.model


@pytest.mark.parametrize("kind", ["run", "checkpoint", "export"])
def test_it_is_asked_anew_at_each_step(run, tmp_path, kind):
    folder, teacher = run
    if kind == "checkpoint":
        folder = folder / "checkpoints" / "global_step_4"
    if kind == "export":
        folder = export_checkpoint(folder, "safetensors", tmp_path / "policy")
    expert = make_env_expert(str(folder), make_env(), seed=0)
    expert.begin([0, 1, 2], [0, 1, 2])
    for step in range(3):
        states = torch.randn(3, 5, generator=torch.Generator().manual_seed(step))
        expected = teacher.predict_action_batch({"states": states}, mode="eval")[0]
        np.testing.assert_array_equal(expert.act({"states": states}, [0, 1, 2]), expected[:, 0])


def test_whoever_acts_alone_plays_its_chunks_to_their_end(run):
    folder, teacher = run
    expert = PolicyExpert.load(str(folder), make_env(), sample=False, seed=0)
    expert.begin([0, 1, 2], [0, 1, 2])
    states = torch.randn(3, 5)
    chunk = teacher.predict_action_batch({"states": states}, mode="eval")[0]
    for step in range(2):
        found = expert.act({"states": states + step}, [0, 1, 2])
        np.testing.assert_array_equal(found, chunk[:, step])


def test_what_does_not_fit_is_told(run, tmp_path):
    with pytest.raises(ValueError, match="does not fit env.train"):
        make_env_expert(str(run[0]), make_env(obs_dim=7), seed=0)
    with pytest.raises(ValueError, match="there is no checkpoint"):
        make_env_expert(str(tmp_path / "none"), make_env(), seed=0)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="is not a policy that `rlinf export` wrote"):
        make_env_expert(str(tmp_path), make_env(), seed=0)
