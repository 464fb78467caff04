"""Whole jobs with a reward model: collect, train it, and learn from its rewards alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlinf.cli import main
from rlinf.workers.env.async_acting_env_worker import AsyncActingEnvWorker

SHORT = [
    "runner.deterministic=true",
    "runner.logger.logger_backends=[jsonl]",
    "runner.progress=off",
]
PPO = [
    *SHORT,
    "runner.ckpt_path=null",
    "runner.max_steps=2",
    "runner.val_check_interval=-1",
    "runner.eval_episodes=4",
    "runner.save_interval=1",
    "env.train.max_episode_steps=20",
    "env.eval.max_episode_steps=20",
    "env.eval.total_num_envs=4",
    "env.eval.video_cfg.save_video=false",
    "env.train.total_num_envs=8",
    "actor.global_batch_size=80",
    "algorithm.update_epoch=2",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A run that trained a reward model on two good episodes and two bad ones."""
    folder = tmp_path_factory.mktemp("reward")
    recipe, data, run = "metaworld_reward_model_mlp", folder / "d", folder / "m"
    words = ["collect.episodes=4", f"collect.save_dir={data}", "runner.progress=off"]
    assert main(["collect", recipe, *words]) == 0
    words = [*SHORT, "runner.max_steps=3", f"data.train_data_paths=[{data}]"]
    command = [sys.executable, "-m", "rlinf.cli", "train", recipe, *words, "--debug=inline"]
    done = subprocess.run(
        [*command, f"runner.run_dir={run}"], cwd=folder, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert "observations of 2 episodes that were held out" in done.stdout
    return run


@pytest.mark.timeout(300)
def test_the_model_tells_solved_from_unsolved(model) -> None:
    summary = json.loads((model / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["gradient_updates"] == 300
    found = summary["evaluation"]
    assert found["eval/episodes"] == 2 and found["eval/samples"] == 200
    assert found["eval/auc"] > 0.9 and found["eval/recall"] > 0.5


def steps(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "reward/model_mean" in line]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    place = folder / "checkpoints" / "global_step_2" / "actor" / "tensors"
    return load_file(next(place.glob("*.safetensors")))


@pytest.mark.timeout(300)
def test_a_policy_learns_from_the_rewards_of_the_model(runners, model, tmp_path) -> None:
    recipe = "metaworld_ppo_reward_model_mlp"
    words = [*PPO, f"reward.model.model_path={model}"]
    acting = runners.runner(tmp_path / "acting", recipe, words)
    acting.run()
    first = steps(acting.folder)[0]
    # The rewards are those of the model: the env's own are 5 and more in such an episode.
    assert first["rollout/rewards"] == pytest.approx(first["reward/mean"], rel=1e-4)
    assert first["reward/mean"] == pytest.approx(first["reward/model_mean"])
    assert first["env/reward"] > 10 * first["reward/mean"]
    assert 0 <= first["reward/agreement"] <= 1

    apart = runners.runner(
        tmp_path / "apart",
        recipe,
        [*words, "rollout.in_env_process=false", "cluster.component_placement.reward=0-1"],
    )
    apart.run()
    assert steps(apart.folder)[0]["reward/mean"] == pytest.approx(first["reward/mean"], rel=1e-4)

    resume = [f"runner.resume_dir={acting.folder}/checkpoints/global_step_1"]
    resumed = runners.runner(tmp_path / "resumed", recipe, [*words, *resume])
    resumed.run()
    ours, theirs = tensors(acting.folder), tensors(resumed.folder)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("learner", ["ppo", "sac"])
def test_rollouts_ahead_of_the_learner_have_the_rewards_of_the_model(
    runners, model, tmp_path, learner
) -> None:
    """They are scored while the learner learns from those before."""
    words = [
        *PPO,
        "algorithm.max_policy_age=1",
        "runner.deterministic=false",
        "runner.max_steps=3",
        f"reward.model.model_path={model}",
    ]
    if learner == "sac":
        words += ["reward.use_reward_model=true", "reward.use_reward_prob=true"]
        words += ["algorithm.replay_buffer.min_buffer_size=100"]
        words += ["env.train.max_steps_per_rollout_epoch=20"]
    recipe = {"ppo": "metaworld_ppo_reward_model_mlp", "sac": "metaworld_sac_mlp"}[learner]
    place = "cluster.component_placement={actor:0,rollout:1,env:1,reward:0}"
    workers = {"acting": (AsyncActingEnvWorker, ())}
    runner = runners.runner(tmp_path, recipe, [*words, place], workers)
    summary = runner.run()
    assert summary["status"] == "finished" and summary["env_steps"] == 3 * 8 * 20
    assert summary["policy_age_max"] == 1 and summary["stale_dropped"] == 0
    for step in steps(runner.folder):
        assert step["rollout/rewards"] == pytest.approx(step["reward/model_mean"], rel=1e-4)
    if learner == "sac":
        assert summary["gradient_updates"] == 3 * 2 and summary["replay_size"] == 3 * 8 * 20
