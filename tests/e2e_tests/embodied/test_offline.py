"""Whole jobs that learn from data: collect, clone, resume, and begin another run with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlinf.cli import main

RECIPE = "metaworld_bc_mlp"
SHORT = [
    "runner.max_steps=4",
    "runner.local_update_steps=60",
    "runner.val_check_interval=-1",
    "runner.eval_episodes=4",
    "runner.deterministic=true",
    "env.eval.total_num_envs=4",
    "env.eval.video_cfg.save_video=false",
    "runner.logger.logger_backends=[jsonl]",
]


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> Path:
    """Four episodes of the scripted expert."""
    folder = tmp_path_factory.mktemp("demos") / "d"
    words = ["collect.episodes=4", f"collect.save_dir={folder}", "runner.progress=off"]
    assert main(["collect", RECIPE, *words]) == 0
    return folder


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    place = folder / "checkpoints" / f"global_step_{step}" / "actor" / "tensors"
    return load_file(next(place.glob("*.safetensors")))


@pytest.mark.timeout(300)
def test_cloned_resumed_and_begun_with(runners, demos, tmp_path) -> None:
    data = f"data.train_data_paths=[{demos}]"
    whole = runners.runner(tmp_path / "whole", RECIPE, [*SHORT, data])
    summary = whole.run()
    assert summary["status"] == "finished"
    assert summary["gradient_updates"] == 240 and summary["demo_episodes"] == 4
    assert summary["evaluation"]["eval/episodes"] == 4
    # The button is pressed in most places after a few hundred steps.
    assert summary["evaluation"]["eval/success_once"] >= 0.5
    lines = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["train/actor/loss"] for line in lines if "train/actor/loss" in line]
    assert len(losses) == 4 and losses[-1] < 0.5 * losses[0]

    half = [*SHORT, data, "runner.save_interval=2", "runner.keep_last=4"]
    first = runners.runner(tmp_path / "half", RECIPE, half)
    first.max_steps = 2
    first.run()
    resume = [f"runner.run_dir={first.folder}", "runner.resume_dir=auto"]
    resumed = runners.runner(tmp_path / "half", RECIPE, [*half, *resume])
    again = resumed.run()
    assert again["gradient_updates"] == 240
    ours, theirs = tensors(whole.folder, 4), tensors(resumed.folder, 4)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    begun = runners.runner(
        tmp_path / "ppo",
        "metaworld_ppo_mlp",
        [
            *(word for word in SHORT if "local_update" not in word),
            "runner.max_steps=1",
            "runner.eval_at_start=true",
            f"runner.ckpt_path={whole.folder}",
        ],
    )
    ppo = begun.run()
    before = ppo["initial_evaluation"]
    assert before["eval/return"] == pytest.approx(summary["evaluation"]["eval/return"], rel=1e-4)
