"""Embodied training for real: it learns, in every mode, and the modes agree."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import learning
from rlinf.cli import curves
from rlinf.config import ConfigError, build_config, validate_cfg
from rlinf.scheduler import wait_all
from tests.e2e_tests.embodied.conftest import CONFIGS

SHORT = [
    "runner.max_epochs=2",
    "runner.eval_episodes=4",
    "env.train.max_episode_steps=20",
    "env.eval.max_episode_steps=20",
    "env.eval.total_num_envs=4",
    "env.eval.video_cfg.save_video=false",
    "actor.global_batch_size=80",
    "algorithm.update_epoch=2",
]


@pytest.mark.timeout(300)
def test_the_default_job_learns_to_press_the_button(runners, tmp_path):
    overrides = ["runner.max_epochs=20", "env.eval.video_cfg.save_video=false", "runner.seed=1"]
    overrides += ["runner.val_check_interval=10"]
    runner = runners.runner(tmp_path, "metaworld_ppo_mlp", overrides)
    summary = runner.run()
    assert summary["evaluation"]["eval/success_once"] >= 0.8
    assert summary["evaluation"]["eval/episodes"] == 100
    assert summary["evaluation"]["eval/distinct_starts"] == 100
    assert summary["env_steps"] == 20 * 1600
    written = json.loads((runner.folder / "summary.json").read_text())
    assert written["status"] == "finished" and written["versions"]["mujoco"] == "3.3.0"
    lines = [
        json.loads(line) for line in (runner.folder / "metrics.jsonl").read_text().splitlines()
    ]
    first, last = lines[0], lines[-2]
    assert last["env/return"] > 3 * first["env/return"]
    assert last["train/actor/approx_kl"] >= 0
    assert (runner.folder / "tensorboard").is_dir() and (runner.folder / "config.yaml").is_file()
    # What `rlinf verify` and `benchmarks.learning` read of it.
    curve = curves.read_curve(runner.folder)
    assert curve.steps == [10 * 1600, 20 * 1600] and curve.episodes == [100, 100]
    assert curve.values["success_once"][1] >= 0.8
    run = learning.read_run(runner.folder, seed=1, wall_seconds=1.0)
    assert run.steps == summary["env_steps"]
    assert 0 < run.training_seconds < summary["training_seconds"]


MODES = {
    "collocated": ["cluster.component_placement={actor:0-1,rollout:0-1,env:0-1}"],
    "disaggregated": ["cluster.component_placement={actor:0,rollout:1-2,env:3-6}"],
    "hybrid": [
        "cluster.component_placement={actor:0-1,rollout:2-3,env:0-1}",
        "rollout.pipeline_stage_num=2",
    ],
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_trains_with_several_ranks(runners, tmp_path, mode):
    runner = runners.runner(tmp_path, "metaworld_ppo_mlp", [*SHORT, *MODES[mode]])
    summary = runner.run()
    assert summary["env_steps"] == 2 * 16 * 20
    weights = runner.actor.weights().wait()
    for other in weights[1:]:
        assert all(torch.equal(weights[0][name], other[name]) for name in weights[0])


@pytest.mark.timeout(180)
def test_grpo_trains(runners, tmp_path):
    summary = runners.runner(tmp_path, "metaworld_grpo_mlp", SHORT).run()
    assert summary["env_steps"] == 2 * 32 * 20


def rollout_of(runners, tmp_path, overrides: list[str]) -> dict[str, torch.Tensor]:
    runner = runners.runner(tmp_path, "metaworld_ppo_mlp", [*SHORT, *overrides])
    runner.update_rollout_weights()
    runner.generate_rollouts()
    return runner.actor.batch().wait()[0]


@pytest.mark.timeout(180)
def test_pipelined_and_unpipelined_rollouts_are_the_same(runners, tmp_path):
    plain = rollout_of(runners, tmp_path, ["rollout.pipeline_stage_num=1"])
    staged = rollout_of(runners, tmp_path, ["rollout.pipeline_stage_num=2"])
    # With two stages, the first halves of both workers' envs come before the second halves.
    order = [*range(0, 4), *range(8, 12), *range(4, 8), *range(12, 16)]
    for name, tensor in plain.items():
        torch.testing.assert_close(staged[name], tensor[:, order], rtol=1e-5, atol=1e-6)


@pytest.mark.timeout(180)
def test_one_global_batch_gives_the_same_update_for_any_ranks_and_micro_batches(runners, tmp_path):
    """Same rollout, one optimiser step: the new weights agree to rounding."""
    results = []
    for actors, micro in (("0", "null"), ("0", "40"), ("0-1", "20")):
        overrides = [
            f"cluster.component_placement={{actor:{actors},rollout:0,env:0-1}}",
            f"actor.micro_batch_size={micro}",
            "actor.global_batch_size=320",
            "algorithm.update_epoch=1",
        ]
        runner = runners.runner(tmp_path, "metaworld_ppo_mlp", [*SHORT, *overrides])
        runner.update_rollout_weights()
        runner.generate_rollouts()
        runner.learn()
        results.append(runner.actor.weights().wait()[0])
    for other in results[1:]:
        for name, tensor in results[0].items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_changed_weight_is_named():
    from rlinf.hybrid_engines.weight_sync.checksum import checksum
    from rlinf.hybrid_engines.weight_sync.receiver import WeightMismatch, load_tensor

    own = {"layer.weight": torch.zeros(3)}
    load_tensor(own, "layer.weight", torch.ones(3), checksum(torch.ones(3)))
    with pytest.raises(WeightMismatch, match="'layer.weight' arrived changed"):
        load_tensor(own, "layer.weight", torch.ones(3), checksum(torch.zeros(3)))
    with pytest.raises(WeightMismatch, match="does not have"):
        load_tensor(own, "other", torch.ones(3), None)


def test_env_counts_that_do_not_divide_are_refused_before_anything_starts():
    cfg = build_config(
        "metaworld_ppo_mlp", overrides=["env.train.total_num_envs=15"], config_path=CONFIGS
    )
    with pytest.raises(ConfigError, match="15"):
        validate_cfg(cfg)


@pytest.mark.timeout(120)
def test_an_unknown_task_lists_the_near_ones(runners, tmp_path):
    with pytest.raises(ValueError, match="button-press-v3"):
        runners.runner(tmp_path, "metaworld_ppo_mlp", [*SHORT, "env.train.task=buton-press-v3"])
    assert wait_all() == []


@pytest.mark.timeout(120)
def test_only_eval_does_not_train(runners, tmp_path):
    overrides = [*SHORT, "runner.only_eval=true"]
    runner = runners.runner(tmp_path, "metaworld_ppo_mlp", overrides)
    before = runner.actor.weights().wait()[0]
    summary = runner.run()
    assert summary["status"] == "evaluated" and summary["env_steps"] == 0
    assert summary["evaluation"]["eval/episodes"] == 4
    after = runner.actor.weights().wait()[0]
    assert all(torch.equal(before[name], after[name]) for name in before)
