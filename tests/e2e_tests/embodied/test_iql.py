"""A whole job of implicit Q-learning: collect, learn, resume, and begin rollouts with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlinf.cli import main

RECIPE = "metaworld_iql_mlp"
SHORT = [
    "runner.max_steps=2",
    "runner.val_check_interval=-1",
    "runner.eval_episodes=4",
    "runner.deterministic=true",
    "env.eval.total_num_envs=4",
    "env.eval.video_cfg.save_video=false",
    "runner.logger.logger_backends=[jsonl]",
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Path:
    """Two good episodes and two bad ones."""
    folder = tmp_path_factory.mktemp("mixed") / "d"
    words = ["collect.episodes=4", "collect.noise=[0,20]", f"collect.save_dir={folder}"]
    assert main(["collect", RECIPE, *words, "runner.progress=off"]) == 0
    return folder


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    place = folder / "checkpoints" / f"global_step_{step}" / "actor" / "tensors"
    return load_file(next(place.glob("*.safetensors")))


@pytest.mark.timeout(300)
def test_learned_resumed_and_begun_with(runners, mixed, tmp_path) -> None:
    words = [*SHORT, "runner.local_update_steps=20", f"data.train_data_paths=[{mixed}]"]
    words += ["runner.save_interval=1", "runner.keep_last=4"]
    whole = runners.runner(tmp_path / "whole", RECIPE, words)
    summary = whole.run()
    assert summary["status"] == "finished"
    assert summary["gradient_updates"] == 40 and summary["demo_episodes"] == 4

    first = runners.runner(tmp_path / "half", RECIPE, words)
    first.max_steps = 1
    first.run()
    resume = [f"runner.run_dir={first.folder}", "runner.resume_dir=auto"]
    resumed = runners.runner(tmp_path / "half", RECIPE, [*words, *resume])
    assert resumed.run()["gradient_updates"] == 40
    ours, theirs = tensors(whole.folder, 2), tensors(resumed.folder, 2)
    assert any(name.startswith("reference.q_head.") for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    begin = [*SHORT, "runner.eval_at_start=true", f"runner.ckpt_path={whole.folder}"]
    ppo = runners.runner(tmp_path / "ppo", "metaworld_ppo_mlp", [*begin, "runner.max_steps=1"])
    before = ppo.run()["initial_evaluation"]
    assert before["eval/return"] == pytest.approx(summary["evaluation"]["eval/return"], rel=1e-4)
