"""Evaluations write beside what the training wrote."""

from __future__ import annotations

from rlinf.runners.run_folder import run_folder, training_folder
from rlinf.utils.checkpoint import CheckpointStore
from tests.unit_tests.workers.actor.learning import make_cfg

EVAL = {"env_type": "metaworld", "total_num_envs": 4}


def cfg_of(tmp_path, **runner):
    logger = {"log_path": str(tmp_path), "experiment_name": "mine"}
    keys = {f"runner.{key}": value for key, value in runner.items()}
    return make_cfg({"runner.logger": logger, "env.eval": EVAL, **keys})


def test_folders(tmp_path):
    run = tmp_path / "mine"
    assert run_folder(cfg_of(tmp_path)) == training_folder(cfg_of(tmp_path)) == run
    assert run_folder(cfg_of(tmp_path, resume_dir="auto")) == run
    one = cfg_of(tmp_path, only_eval=True, resume_dir="/elsewhere/global_step_3")
    assert run_folder(one) == run / "eval_global_step_3"
    assert training_folder(one) == run
    auto = cfg_of(tmp_path, only_eval=True, resume_dir="auto")
    assert run_folder(auto) == run_folder(cfg_of(tmp_path, only_eval=True)) == run / "eval"
    store = CheckpointStore(run / "checkpoints")
    for step in (2, 10):
        store.begin(step)
        store.commit(step, {})
    assert run_folder(auto) == run / "eval_global_step_10"
