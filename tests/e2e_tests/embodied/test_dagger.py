"""A whole job of DAgger: the expert begins, the policy goes on, and a resumed run is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RECIPE = "metaworld_dagger_mlp"
SHORT = [
    "runner.max_epochs=3",
    "runner.val_check_interval=-1",
    "runner.eval_episodes=4",
    "runner.deterministic=true",
    "runner.save_interval=1",
    "runner.keep_last=4",
    "algorithm.update_epoch=30",
    "env.train.max_episode_steps=40",
    "env.eval.total_num_envs=4",
    "env.eval.video_cfg.save_video=false",
    "runner.logger.logger_backends=[jsonl]",
]


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    place = folder / "checkpoints" / f"global_step_{step}" / "actor" / "tensors"
    return load_file(next(place.glob("*.safetensors")))


def metrics(folder: Path, name: str) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


@pytest.mark.timeout(300)
def test_the_expert_begins_and_a_resumed_run_is_the_same(runners, tmp_path) -> None:
    whole = runners.runner(tmp_path / "whole", RECIPE, SHORT)
    summary = whole.run()
    assert summary["status"] == "finished" and summary["gradient_updates"] == 90
    assert metrics(whole.folder, "rollout/intervened") == [1.0, 0.0, 0.0]
    assert metrics(whole.folder, "train/dagger/labels") == [80.0, 160.0, 240.0]
    losses = metrics(whole.folder, "train/actor/loss")
    assert losses[-1] < losses[0]

    first = runners.runner(tmp_path / "half", RECIPE, SHORT)
    first.max_steps = 1
    first.run()
    resume = [f"runner.run_dir={first.folder}", "runner.resume_dir=auto"]
    resumed = runners.runner(tmp_path / "half", RECIPE, [*SHORT, *resume])
    resumed.run()
    assert metrics(resumed.folder, "train/dagger/labels")[-1] == 240.0
    ours, theirs = tensors(whole.folder, 3), tensors(resumed.folder, 3)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.timeout(300)
def test_only_interventions_are_learned_from(runners, tmp_path) -> None:
    gate = ["algorithm.dagger.only_save_expert=true", "algorithm.dagger.gate=deviation"]
    run = runners.runner(tmp_path, RECIPE, [*SHORT, *gate])
    assert run.run()["status"] == "finished"
    share, labels = (
        metrics(run.folder, name) for name in ("rollout/intervened", "train/dagger/labels")
    )
    assert share[0] == 1.0 and 0.0 < share[1] <= 1.0
    assert labels == pytest.approx([80 * sum(share[: i + 1]) for i in range(3)])
